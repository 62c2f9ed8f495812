"""What screen 2 can have done to the swarm: the dialogs know this much of it, whoever opened the dashboard does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ActionFailed(Exception):
    """The message says why and what to do."""


@dataclass(frozen=True)
class Hosted:
    """A coordinator that runs. invites: one line each, the ones that others can reach first. page: its status page."""

    name: str
    invites: tuple[str, ...]
    page: str


@dataclass(frozen=True)
class OfferedTask:
    """A task of the host's own that this swarm trains on and that the person did not accept yet, as it is now.

    version: its hash. lines: all that is accepted, as plain text. dropped: why it cannot be accepted, "" where it can.
    """

    name: str
    version: str
    lines: tuple[str, ...] = ()
    dropped: str = ""


@dataclass(frozen=True)
class Guest:
    """A node that waits to be let in. name, model: peer text."""

    node: str
    name: str
    model: str


@dataclass(frozen=True)
class Listed:
    """A swarm in a directory, in its host's words. join: the line to join with, "" where one has to ask: why says whom."""

    name: str
    trains: str
    nodes: int
    rounds_per_hour: float
    checks: str
    anyone: bool
    join: str
    why: str


@dataclass(frozen=True)
class Directory:
    """What was read of one directory. place: where it is. read: Unix time of the copy. note: why it is a copy from the disk, or
    why there is nothing; "" where all is well."""

    place: str
    name: str = ""
    swarms: tuple[Listed, ...] = ()
    read: float = 0.0
    note: str = ""


class SwarmActions(Protocol):
    """Every method raises ActionFailed."""

    def hosting(self) -> bool:
        """A coordinator of this home runs."""
        ...

    async def join(self, invite: str, listed: bool = False) -> str:
        """Join, and keep the invite unless it is refused; the node restarts in that swarm after its round. listed: it stood in a
        directory. A sentence."""
        ...

    async def stay(self) -> str:
        """End the trial: normal settings after the round. A sentence."""
        ...

    async def directories(self, fresh: bool = False) -> tuple[Directory, ...]:
        """What the directories of the settings list. fresh: ask their hosts now, however lately that was done."""
        ...

    async def wrong_with(self, invite: str) -> str:
        """Ask the coordinator whether this line still lets a node in: why not, "" where it does."""
        ...

    async def add_directory(self, line: str) -> None:
        """Look in this one too from now on."""
        ...

    async def host(self, everybody: bool, approve: bool = False) -> Hosted:
        """A coordinator in the background (the one that runs, if any) and a fresh invite. approve: new nodes wait."""
        ...

    async def waiting(self) -> tuple[Guest, ...]:
        """Nodes that wait for this host, the longest first; none where no coordinator runs or it does not answer."""
        ...

    async def let_in(self, guest: Guest) -> str:
        """Let it take part. A sentence."""
        ...

    async def stop_hosting(self) -> str:
        """End the coordinator of this home. A sentence."""
        ...

    async def leave(self) -> str:
        """Leave the swarm and forget its invite. A sentence."""
        ...

    async def offered(self) -> tuple[OfferedTask, ...]:
        """Tasks of the swarm that wait for the person's yes."""
        ...

    async def accept(self, task: OfferedTask) -> str:
        """Store the task as it was shown, and train on it beside the model's other tasks. A sentence."""
        ...

    async def nearby(self) -> tuple[str, ...]:
        """Addresses of coordinators that announce themselves on this network: a hint, nothing to trust."""
        ...
