"""CSV: one column per figure, in alphabetical order; an empty cell where a row lacks the figure."""

from __future__ import annotations

import csv

from sapo_desktop.services.models.figures.formats import FigureJob
from sapo_desktop.services.models.figures.whole_file import FIRST, flatten_row, whole_file
from sapo_swarm.protocol.safe_text import safe_text

_FORMULA = ("=", "+", "-", "@")


def write(job: FigureJob) -> None:
    """See formats.write_figures."""
    columns = sorted({column for row in job.figures for column in row.figures})
    with whole_file(job) as file:
        table = csv.DictWriter(file, names := (*FIRST, *columns), restval="")
        table.writerow({name: as_text(name) for name in names})
        table.writerows({name: as_text(value) for name, value in flatten_row(row).items()} for row in job.counted())


def as_text(cell: object) -> object:
    """A cell that a spreadsheet does not evaluate: names of tasks and swarms come from others, and one that starts like a
    formula would be run as one."""
    if not isinstance(cell, str):
        return cell
    plain = safe_text(cell, len(cell), lines=False)
    return f"'{plain}" if plain.lstrip()[:1] in _FORMULA else plain
