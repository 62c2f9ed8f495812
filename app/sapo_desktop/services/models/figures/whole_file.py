"""A file that is written under another name and moved into place when complete."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from sapo_desktop.services.models.figures.formats import FigureJob
from sapo_desktop.services.models.figures.rows import FigureRow
from sapo_swarm.whole_file import open_atomic

FIRST = ("kind", "round", "covers", "time", "questions")
"""The columns of every row, before its figures."""


@contextmanager
def whole_file(job: FigureJob) -> Iterator[IO[str]]:
    """The file to write into. Raises AppError where something is in the way, OSError."""
    if job.target.is_dir():
        raise job.taken("is a folder")
    if job.target.exists() and not job.force:
        raise job.taken("exists")
    with open_atomic(job.target) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()


def flatten_row(row: FigureRow) -> dict[str, object]:
    """The row and its figures on one level."""
    return {**{name: getattr(row, name) for name in FIRST}, **row.figures}
