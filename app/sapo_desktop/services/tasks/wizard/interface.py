"""What the wizard's screens know of tasks: whoever opened the dashboard does the rest. Light: no engine is imported."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


class TaskActionFailed(Exception):
    """The message says why and what to do."""


@dataclass(frozen=True)
class Place:
    """A file or folder on offer. path: what choosing it puts into the field; detail: its size and age; folder: it is opened."""

    name: str
    path: str
    detail: str
    folder: bool = False


@dataclass(frozen=True)
class Answers:
    """What the person says about a file; "" leaves it to the app. verifier: a kind, such as "number"; base: to be trained."""

    path: str
    name: str = ""
    question: str = ""
    answer: str = ""
    prompt: str = ""
    extract: str = "tags"
    verifier: str = ""
    base: str = ""


@dataclass(frozen=True)
class Seen:
    """A file as a task that is not stored yet.

    answers: with everything that was left to the app. rows: (question, answer) of the first ones, cut. verifiers: (kind, why),
    the chosen one first where nothing was chosen. summary: sentences on what it is; said: things to look at, with row numbers.
    """

    columns: tuple[str, ...]
    answers: Answers
    rows: tuple[tuple[str, str], ...]
    verifiers: tuple[tuple[str, str], ...]
    summary: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """What asking verifier and model told. shortcuts: figures; warnings: what to mend; expectation: of the model."""

    shortcuts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    expectation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """What the wizard ends with: a stored task, and the base that a new model shall start from."""

    task: str
    base: str


@dataclass(frozen=True)
class Step:
    """A step of measuring. progress: a line that the next one replaces; measured: the end of it."""

    progress: str = ""
    measured: Measured | None = None


class TaskActions(Protocol):
    """Every method raises TaskActionFailed."""

    async def places(self, typed: str) -> tuple[Place, ...]:
        """Tables and folders where the typed path leads, the newest tables first."""
        ...

    async def look(self, answers: Answers) -> Seen:
        """Read the file (once) and propose the rest."""
        ...

    async def keep(self, answers: Answers, replace: bool) -> str:
        """Store the task; its name."""
        ...

    async def taken(self, name: str) -> bool:
        """A task of that name is stored already."""
        ...

    async def models(self) -> tuple[tuple[str, str], ...]:
        """(base, explanation) to try and to train, the first one being the default."""
        ...

    def measure(self, name: str, base: str, source: str) -> AsyncGenerator[Step, None]:
        """Shortcuts of a stored task, and what an untrained base does with it. Closing it stops the work. source: the file whose
        row numbers are told."""
        ...

    async def train(self, name: str, base: str) -> str:
        """A new model that starts from the base, on this task alone; the node trains it now. A sentence."""
        ...

    async def rate(self, model: str, question: str, text: str, good: bool) -> str:
        """Keep a thumb up or down on an answer of that model as a row. A sentence."""
        ...
