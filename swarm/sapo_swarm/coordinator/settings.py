"""What a person may set for a coordinator: one documented schema for CLI flags, docs and tests."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.errors import suggest_names
from sapo_swarm.protocol.invite import DEFAULT_PORT, is_host
from sapo_swarm.tasks.catalogue import CATALOGUE, PRESETS, STRICT_PRESETS

MOST = 1_000_000_000
"""Upper bound of whatever is counted here: what no machine holds is refused, not tried."""


def _doc(text: str, **limits: float) -> Meta:
    meta: Meta = Meta(description=text, **limits)  # type: ignore[call-overload]
    return meta


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a swarm is hosted."""

    host: Annotated[str, _doc("Address to listen on; 0.0.0.0 or :: for all. Loopback speaks plain HTTP")] = "127.0.0.1"
    port: Annotated[int, _doc("TCP port; 0 picks a free one", ge=0, le=65535)] = DEFAULT_PORT
    tls: Annotated[bool, _doc("Encrypt on loopback too (elsewhere it always is)")] = False
    store: Annotated[
        str, _doc("sqlite:PATH, redis://host:port/db, valkey://… or sentinel://host:port,host:port/NAME")
    ] = "sqlite:swarm.sqlite"
    folder: Annotated[str, _doc("Where the admin key lies; empty: beside the SQLite file, or the current folder")] = ""
    name: Annotated[
        str, _doc("The swarm's name, as members see it; empty: the one it has, swarm for a new one", max_length=40)
    ] = ""
    open: Annotated[bool, _doc("Anyone may join without an invite: nobody in it is trusted")] = False
    list: Annotated[bool, _doc("Serve a signed list of this one swarm, /directory.json, for people to find it by")] = (
        False
    )
    public: Annotated[
        str, _doc("Name or number by which others reach this machine, for invites and the list; empty: its own")
    ] = ""
    contact: Annotated[str, _doc("Whom to ask for an invite, as the list tells it", max_length=150)] = ""
    tasks: Annotated[tuple[str, ...], _doc("Tasks whose groups are accepted")] = tuple(CATALOGUE)
    presets: Annotated[tuple[str, ...], _doc("Difficulties that are accepted")] = tuple(sorted(STRICT_PRESETS))
    share_fraction: Annotated[float, _doc("Part of its groups a node is asked to share", gt=0.0, le=1.0)] = 1.0

    invite_hours: Annotated[float, _doc("Life of the first invite, in hours; 0: for ever", ge=0.0)] = 168.0
    invite_uses: Annotated[int, _doc("Nodes the first invite admits; 0: any number", ge=0, le=MOST)] = 10
    approve: Annotated[bool, _doc("New nodes wait until you let them in: sapo-desktop swarm approve")] = False

    round_every_s: Annotated[float, _doc("Seconds between a node's rounds, on average", gt=0.0)] = 5.0
    round_burst: Annotated[int, _doc("Rounds a node may send at once", ge=1, le=MOST)] = 3
    prefix_per_s: Annotated[float, _doc("Requests a second from one /24 or /64 (loopback is exempt)", gt=0.0)] = 50.0
    joins_per_s: Annotated[float, _doc("Joins a second from one /24 or /64 (loopback is exempt)", gt=0.0)] = 0.5
    idle_days: Annotated[
        float, _doc("Days of silence after which a node, or an invite, is good no more; 0: never", ge=0.0, le=36_500.0)
    ] = 30.0
    members: Annotated[int, _doc("Nodes a swarm admits in all", ge=1, le=MOST)] = 200_000
    in_flight: Annotated[int, _doc("Requests served at once; more are told to come again", ge=1, le=MOST)] = 512
    connections: Annotated[int, _doc("Open connections at most", ge=1, le=MOST)] = 20_000
    target_rounds_per_s: Annotated[float, _doc("Load at which nodes are asked to slow down", gt=0.0)] = 400.0
    idle_s: Annotated[float, _doc("Seconds a connection may stay silent", gt=0.0)] = 75.0
    body_s: Annotated[float, _doc("Seconds in which a request must have arrived", gt=0.0)] = 10.0

    pool_groups: Annotated[int, _doc("Live groups kept", ge=1, le=MOST)] = 65_536
    pool_bytes: Annotated[int, _doc("Bytes of live groups kept", ge=2**20, le=2**40)] = 256 * 2**20
    snapshot_s: Annotated[float, _doc("Seconds between snapshots of the pool; 0: none", ge=0.0, le=3600.0)] = 30.0
    groups_per_node: Annotated[int, _doc("Live groups of one node; its newest replaces its oldest", ge=1, le=MOST)] = 8
    group_life_s: Annotated[float, _doc("Seconds a group stays in the pool", gt=0.0, le=1e9)] = 900.0
    page: Annotated[bool, _doc("Serve the status page to everybody who can reach the port")] = True
    trust_proxy: Annotated[bool, _doc("Take the client's address from X-Forwarded-For of a proxy on loopback")] = False

    def __post_init__(self) -> None:
        """Raises ValueError for a task or a preset that no node knows (its groups would be refused, or the swarm not read),
        for --approve if nobody would wait, and for a --public that no invite can hold."""
        if self.open and self.approve:
            raise ValueError("In a swarm that is open to anyone nobody waits to be let in: give --open or --approve.")
        if self.public and not is_host(self.public):
            raise ValueError(f"--public is a name or number, without https:// and port, and not {self.public!r}.")
        for kind, names, known in (("task", self.tasks, CATALOGUE), ("preset", self.presets, PRESETS)):
            for name in names:
                if name not in known:
                    raise ValueError(f"There is no {kind} {name!r}. {suggest_names(name, known)}")
