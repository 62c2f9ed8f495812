"""JSON lines: an object a row, with the figures that the row has."""

from __future__ import annotations

from sapo_desktop.services.models.figures.formats import Job
from sapo_desktop.services.models.figures.whole_file import flat, whole_file
from sapo_desktop.streams import json_line


def write(job: Job) -> None:
    """See formats.write."""
    with whole_file(job) as file:
        file.writelines(json_line(flat(row)) + "\n" for row in job.counted())
