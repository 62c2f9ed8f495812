"""Where a round meets the swarm. In silo nothing is exchanged; a node in a swarm plugs its exchange in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group


class Received(msgspec.Struct, frozen=True):
    """Verified, locally scored groups of other nodes; bytes on the wire since the last round."""

    groups: tuple[Group, ...] = ()
    bytes_sent: int = 0
    bytes_received: int = 0


class Exchange(Protocol):
    """Shares own groups and fetches others'. Never raises for a network fault: it returns what there is."""

    def attach(self, host: EngineHost, scorer: Scorer, apart: frozenset[str]) -> None:
        """Called once the engine is loaded: what is received is judged with these."""
        ...

    def to_ask(self, own: int, external: int) -> int:
        """Own questions for the next batch of I = own and J = external, by what others have on offer."""
        ...

    def take(self, taking: bool) -> None:
        """Whether groups of others are wanted at all; what waits is dropped when not. Own ones are shared all the same."""
        ...

    async def exchange(self, round_number: int, own: Sequence[Group], wanted: int) -> Received: ...

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        """Which external groups went into a batch of so many; the news of the swarm, if there is one."""
        ...

    async def close(self) -> None: ...


class Silo:
    """No swarm: shares nothing, receives nothing."""

    def attach(self, host: EngineHost, scorer: Scorer, apart: frozenset[str]) -> None:
        return None

    def to_ask(self, own: int, external: int) -> int:
        return own + external

    def take(self, taking: bool) -> None:
        return None

    async def exchange(self, round_number: int, own: Sequence[Group], wanted: int) -> Received:
        return Received()

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        return None

    async def close(self) -> None:
        return None
