"""JSON lines: one object per row, with the figures that the row has."""

from __future__ import annotations

from sapo_desktop.services.models.figures.formats import FigureJob
from sapo_desktop.services.models.figures.whole_file import flatten_row, whole_file
from sapo_desktop.streams import json_line


def write(job: FigureJob) -> None:
    """See formats.write_figures."""
    with whole_file(job) as file:
        file.writelines(json_line(flatten_row(row)) + "\n" for row in job.counted())
