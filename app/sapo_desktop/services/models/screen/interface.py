"""What screen 4 may have done with models, whoever opened the dashboard does it. Light: no engine is imported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sapo_desktop.services.models.pieces import Said

if TYPE_CHECKING:  # what it imports would be in the memory of every dashboard
    from sapo_desktop.services.models.shelf.overview import Overview


class ModelActionFailed(Exception):
    """The message says why and what to do."""


@dataclass(frozen=True)
class Shelf:
    """Every model, the one used last first. training: id of the one that a node trains now, "" = none. problems: sentences
    about models that cannot be read."""

    models: tuple[Overview, ...] = ()
    training: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewModel:
    """The answers to "New model". preset: "" is that of the settings; tasks: none are those of the settings."""

    name: str
    base: str
    preset: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewModelInfo:
    """What the dialog offers, the first entry being the default; bases and presets are (value, explanation)."""

    name: str
    bases: tuple[tuple[str, str], ...]
    presets: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ExportChoice:
    """One format on offer. arguments: what follows `sapo-desktop export NAME`."""

    label: str
    what: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """A step of long work. progress: a line that the next one replaces. result: lines to keep; the last step has them.

    data: the result for a program, where there is one.
    """

    progress: str = ""
    result: tuple[str, ...] = ()
    data: dict[str, Any] | None = None


class ChatLine(Protocol):
    """A conversation that is open; closing it gives the memory back."""

    labels: tuple[str, str]

    def ask(self, question: str) -> AsyncIterator[Said]:
        """What each says so far, until both are done. Raises ModelActionFailed."""
        ...

    async def close(self) -> None:
        """Give the memory back, and let a node that waited go on."""
        ...


class ModelActions(Protocol):
    """Models are named by their id. Every method raises ModelActionFailed."""

    async def shelf(self) -> Shelf:
        """All models as they are now."""
        ...

    async def offer(self) -> NewModelInfo:
        """What "New model" starts with."""
        ...

    async def new(self, answers: NewModel) -> str:
        """Make it and let the node train it; a sentence."""
        ...

    async def proceed(self, id: str) -> str:
        """The node goes on with this model; a sentence."""
        ...

    async def rename(self, id: str, name: str) -> str:
        """Give it another name; a sentence."""
        ...

    async def duplicate(self, id: str, name: str) -> str:
        """Another model with the same weights and history; a sentence."""
        ...

    async def delete(self, id: str) -> str:
        """The node that trains it is stopped first; refused while another model starts from an export of it. A sentence that
        says what is free again."""
        ...

    async def spare(self, id: str) -> tuple[int, int]:
        """(how many checkpoints may go, their bytes)."""
        ...

    async def free(self, id: str) -> str:
        """Remove them; a sentence."""
        ...

    def compare(self, first: str, second: str, items: int) -> AsyncIterator[Told]:
        """Both on the same held-out questions, so many a task; second "" = the base of the first. Closing it stops the work."""
        ...

    async def chat(self, id: str) -> ChatLine:
        """Load base and trained model; a node that works pauses until the conversation is closed."""
        ...

    def exports(self, id: str) -> tuple[ExportChoice, ...]:
        """The formats that this model can be written in."""
        ...

    def export(self, id: str, choice: ExportChoice) -> AsyncIterator[Told]:
        """Write it. Closing it stops the work, and leaves nothing half written."""
        ...
