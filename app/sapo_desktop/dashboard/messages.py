"""What travels between the dashboard and whoever opened it, beside the node's own events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from sapo_swarm.events import Event

if TYPE_CHECKING:  # it opens databases: a first frame waits for none
    from sapo_desktop.dashboard.history.groups import GroupSource

QuitChoice = Literal["stop", "background"]
"""How the dashboard was left: stop everything, or keep working in the background."""


@dataclass(frozen=True)
class Link:
    """The dashboard's own line to the node came or went; sentence: what the person reads in the header. ended: the node was
    there, and nobody listens in its place any more. starting: another one is on its way already."""

    connected: bool
    sentence: str
    time: float
    ended: bool = False
    starting: bool = False


@dataclass(frozen=True)
class Rewound:
    """A recording is told again from its beginning: what was known of it is forgotten."""


@dataclass(frozen=True)
class Caption:
    """What there is to see in a recording from `time` (Unix seconds) on, and on which screen ("" the one that is shown)."""

    time: float
    text: str
    screen: str = ""


class Feed(Protocol):
    """Where the events come from and the commands go to: a node, or a recording."""

    controls: bool
    """Commands reach a node, so leaving has to ask what becomes of it."""

    def events(self) -> AsyncIterator[Event | Link | Rewound]:
        """Past events first, then live ones; ends only when there will be no more."""
        ...

    async def command(self, verb: str, **body: float) -> None:
        """A POST verb of the control API. Raises CommandFailed."""
        ...

    def groups(self) -> GroupSource | None:
        """Where all groups of what is watched lie: the same one until another run is watched. None: not known yet."""
        ...

    def upto(self) -> int:
        """The number of the newest group that is to be shown: a recording has not told its later ones yet."""
        ...

    def describe(self) -> str:
        """One phrase for the help screen: what is being watched."""
        ...

    def now(self) -> float:
        """Unix seconds on the clock of the events: the wall's, or a recording's."""
        ...
