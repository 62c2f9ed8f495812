"""What travels between the dashboard and whoever opened it, beside the node's own events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

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
