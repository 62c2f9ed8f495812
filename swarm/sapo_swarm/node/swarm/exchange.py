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
    """Shares local groups and fetches external ones. Never raises for a network fault: it returns what there is."""

    def attach(self, host: EngineHost, scorer: Scorer, excluded: frozenset[str]) -> None:
        """Called once the engine is loaded: what is received is judged with these."""
        ...

    def prompts_to_sample(self, local: int, external: int) -> int:
        """Prompts to sample for the next batch of I = local and J = external groups, given what the pool holds."""
        ...

    def take(self, taking: bool) -> None:
        """Whether external groups are wanted at all; the pool is emptied when not. Local ones are shared all the same."""
        ...

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> Received:
        """Hand over this round's local groups; what the pool holds for the batch."""
        ...

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        """Which external groups went into a batch of so many; the news of the swarm, if there is one."""
        ...

    async def close(self) -> None:
        """End the exchange."""
        ...


class Silo:
    """No swarm: shares nothing, receives nothing."""

    def attach(self, _host: EngineHost, _scorer: Scorer, _excluded: frozenset[str]) -> None:
        """See Exchange."""
        return None

    def prompts_to_sample(self, local: int, external: int) -> int:
        """See Exchange."""
        return local + external

    def take(self, _taking: bool) -> None:
        """See Exchange."""
        return None

    async def exchange(self, _round_number: int, _local: Sequence[Group], _wanted: int) -> Received:
        """Hand over this round's local groups; what the pool holds for the batch."""
        return Received()

    def used(self, _groups: Sequence[Group], _batch: int) -> SwarmUpdated | None:
        """See Exchange."""
        return None

    async def close(self) -> None:
        """End the exchange."""
        return None
