"""Which tasks of members' own a swarm trains on, and for whom: invite holders of a swarm that is not open to anyone."""

from __future__ import annotations

import time

from sapo_swarm.coordinator.domain.records import Member, SwarmRecord
from sapo_swarm.coordinator.store.base import Store
from sapo_swarm.protocol.task_offer import TaskOffer

TTL_S = 2.0
"""Other coordinators of the same store learn of a task within so long."""


class OwnTasks:
    """The store's tasks, at most TTL_S old."""

    def __init__(self, store: Store, swarm: SwarmRecord) -> None:
        self._store, self._swarm = store, swarm
        self._known: tuple[float, tuple[TaskOffer, ...]] | None = None

    def changed(self) -> None:
        """The store is asked anew."""
        self._known = None

    async def offered_to(self, member: Member) -> tuple[TaskOffer, ...]:
        """What this member may know of. Nothing in an open swarm, and nothing for who came in without an invite."""
        if self._swarm.open or not member.invite:
            return ()
        now = time.monotonic()
        if self._known is None or now - self._known[0] >= TTL_S:
            self._known = now, tuple(await self._store.tasks())
        return self._known[1]
