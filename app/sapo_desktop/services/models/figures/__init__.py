"""The figures of a run for other programs: tables, TensorBoard, trackio."""

from sapo_desktop.services.models.figures.formats import FORMATS, Job, write
from sapo_desktop.services.models.figures.rows import rows

__all__ = ["FORMATS", "Job", "rows", "write"]
