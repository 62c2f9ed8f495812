"""A run's figures for other programs: tables, TensorBoard, trackio."""

from sapo_desktop.services.models.figures.formats import FORMATS, FigureJob, write_figures
from sapo_desktop.services.models.figures.rows import figure_rows

__all__ = ["FORMATS", "FigureJob", "figure_rows", "write_figures"]
