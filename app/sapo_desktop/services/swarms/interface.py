"""The data that screen 2 and HomeActions exchange."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostedSwarm:
    """A running coordinator. invites: one line each, those that others can reach first. page: its status page."""

    name: str
    invites: tuple[str, ...]
    page: str


@dataclass(frozen=True)
class OfferedTask:
    """A custom task of the host that this swarm trains on and that the person has not accepted yet, in its present version.

    version: its hash. lines: everything that is accepted, as plain text. dropped: why it cannot be accepted, "" where it can.
    """

    name: str
    version: str
    lines: tuple[str, ...] = ()
    dropped: str = ""


@dataclass(frozen=True)
class PendingNode:
    """A node waiting for approval. name, model: text from the peer."""

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
    """What was read from one directory. place: where it is. read: Unix time of the copy. note: why this is a copy from the
    disk, or why there is nothing; "" where all is well."""

    place: str
    name: str = ""
    swarms: tuple[ListedSwarm, ...] = ()
    read: float = 0.0
    note: str = ""
