"""What travels between the dashboard and whoever opened it, beside the node's own events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from sapo_swarm.events import Event

QuitChoice = Literal["stop", "background"]
"""How the dashboard was left: stop everything, or keep working in the background."""


@dataclass(frozen=True)
class Link:
    """The dashboard's own line to the node came or went; sentence: what the person reads in the header. ended: the node was
    there, and nobody listens in its place any more."""

    connected: bool
    sentence: str
    time: float
    ended: bool = False


Verdict = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """One line of the doctor. text says what to do when it is not ok."""

    verdict: Verdict
    what: str
    text: str


class CommandFailed(Exception):
    """The node did not take a command; the message says why and what to do."""


class Feed(Protocol):
    """Where the events come from and the commands go to: a node, or a recording."""

    controls: bool
    """Commands reach a node, so leaving has to ask what becomes of it."""

    def events(self) -> AsyncIterator[Event | Link]:
        """Past events first, then live ones; ends only when there will be no more."""
        ...

    async def command(self, verb: str, **body: float) -> None:
        """A POST verb of the control API. Raises CommandFailed."""
        ...

    def describe(self) -> str:
        """One phrase for the help screen: what is being watched."""
        ...

    def now(self) -> float:
        """Unix seconds on the clock of the events: the wall's, or a recording's."""
        ...


Measure = Callable[[str, str], Awaitable[str]]
"""An answer to hardware and one to model -> a sentence on speed and memory, "" when there is none. It may be cancelled."""


@dataclass(frozen=True)
class FirstRunInfo:
    """What the first-run screen may offer. The first entry of each tuple is the default.

    hardware: (value, what was detected) pairs, for example ("torch", "always torch"). measure: None where nothing measures.
    """

    hardware: tuple[tuple[str, str], ...] = (("auto", "the fastest engine that is installed"),)
    models: tuple[tuple[str, str], ...] = (("starter", "bundled, nothing to download"),)
    tasks: tuple[tuple[str, str], ...] = (("starter", "nine reasoning tasks, easy settings"),)
    limits: tuple[tuple[str, str], ...] = (
        ("gentle", "rests on battery or when warm; others come first"),
        ("full", "as fast as it can; rests on battery or when hot"),
        ("none", "rests only when memory or disk run out"),
    )
    measure: Measure | None = None


@dataclass(frozen=True)
class FirstRunAnswers:
    """The five answers. skipped: Esc was pressed (silo with the starter). invite: only when mode is swarm."""

    mode: Literal["silo", "swarm"] = "silo"
    invite: str = ""
    hardware: str = "auto"
    model: str = "starter"
    tasks: str = "starter"
    limits: str = "gentle"
    name: str = ""
    skipped: bool = False
