"""The figure formats by name; what a format needs is imported only when it is written."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sapo_backends.packages import install_command
from sapo_desktop.errors import AppError, EngineMissing
from sapo_desktop.services.models.figures.rows import FigureRow

Told = Callable[[float, str], None]
"""Progress: a fraction in [0, 1] and a phrase."""


@dataclass(frozen=True)
class FigureFormat:
    """what: for people. module: in this package. package: what it needs besides the app, "" for nothing."""

    what: str
    module: str
    package: str = ""


@dataclass(frozen=True)
class FigureJob:
    """The input of a format's module: the figures of the model `name`, at least one row, and where they go.

    force: replace existing figures.
    """

    name: str
    figures: Sequence[FigureRow]
    target: Path
    force: bool
    told: Told

    def counted(self) -> Iterator[FigureRow]:
        """The rows, reporting progress."""
        for number, row in enumerate(self.figures):
            if number % 1000 == 0:
                self.told(number / len(self.figures), f"figures of {self.name}")
            yield row

    def taken(self, what: str) -> AppError:
        """The error for a target that already exists."""
        return AppError(f"{self.target} {what}. Name another place, or add --force to write in its place.")


FORMATS: dict[str, FigureFormat] = {
    "csv": FigureFormat("one table with a column a figure", "csv_table"),
    "jsonl": FigureFormat("one JSON object a line", "json_lines"),
    "tensorboard": FigureFormat("a folder of event files", "event_files", "tensorboard"),
    "trackio": FigureFormat("a folder of trackio's projects", "tracked", "trackio"),
}


def write_figures(format_: str, job: FigureJob) -> None:
    """Write the figures.

    Raises EngineMissing with the command that installs what the format needs, AppError for what is in the way, OSError.
    """
    entry = FORMATS[format_]
    if entry.package and importlib.util.find_spec(entry.package) is None:
        raise EngineMissing(
            f"The format {format_} needs {entry.package}: {install_command(entry.package)}. csv and jsonl need nothing."
        )
    if not job.figures:
        raise AppError(f"{job.name} has no figures yet: it has not been trained.")
    job.target.parent.mkdir(parents=True, exist_ok=True)
    importlib.import_module(f"sapo_desktop.services.models.figures.{entry.module}").write(job)
