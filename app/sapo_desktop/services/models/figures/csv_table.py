"""CSV: a column a figure, in alphabetical order; an empty cell where a row has no such figure."""

from __future__ import annotations

import csv

from sapo_desktop.services.models.figures.formats import Job
from sapo_desktop.services.models.figures.whole_file import FIRST, flat, whole_file


def write(job: Job) -> None:
    """See formats.write."""
    columns = sorted({column for row in job.figures for column in row.figures})
    with whole_file(job) as file:
        table = csv.DictWriter(file, (*FIRST, *columns), restval="")
        table.writeheader()
        table.writerows(flat(row) for row in job.counted())
