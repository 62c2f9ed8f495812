"""The data that screen 4 and HomeModels exchange. Light: no engine is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapo_desktop.services.models.shelf.overview import ModelOverview


@dataclass(frozen=True)
class ModelListing:
    """Every model, the one used last first. training: id of the model that a node trains now, "" = none. problems: sentences
    about models that cannot be read."""

    models: tuple[ModelOverview, ...] = ()
    training: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewModel:
    """The answers to "New model". preset: "" uses the one in the settings; tasks: empty uses those in the settings."""

    name: str
    base: str
    preset: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewModelInfo:
    """The choices in the dialog, the first entry being the default; bases and questions are (value, explanation). questions:
    `own` tasks of the person's, then the presets of the tasks in the settings."""

    name: str
    bases: tuple[tuple[str, str], ...]
    questions: tuple[tuple[str, str], ...]
    own: int = 0


@dataclass(frozen=True)
class KeptRow:
    """A state that a model can go back to: the number of rounds, its line in the table, whether the model has these weights
    now."""

    round: int
    line: str
    current: bool


@dataclass(frozen=True)
class KeptTable:
    """All kept states, newest first, with the names of the columns and what they mean."""

    head: str
    rows: tuple[KeptRow, ...]
    legend: str


@dataclass(frozen=True)
class ExportChoice:
    """One format on offer. arguments: what follows `sapo-desktop export NAME`."""

    label: str
    what: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ProgressUpdate:
    """A step of long work. progress: a line that replaces the one before. result: lines to keep, in the last step.

    data: the result for a program, where there is one.
    """

    progress: str = ""
    result: tuple[str, ...] = ()
    data: dict[str, Any] | None = None
