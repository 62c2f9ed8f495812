"""What screen 2 and HomeActions tell each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostedSwarm:
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
class PendingNode:
    """A node that waits to be let in. name, model: peer text."""

    node: str
    name: str
    model: str


@dataclass(frozen=True)
class ListedSwarm:
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
class SwarmDirectory:
    """What was read of one directory. place: where it is. read: Unix time of the copy. note: why it is a copy from the disk, or
    why there is nothing; "" where all is well."""

    place: str
    name: str = ""
    swarms: tuple[ListedSwarm, ...] = ()
    read: float = 0.0
    note: str = ""
