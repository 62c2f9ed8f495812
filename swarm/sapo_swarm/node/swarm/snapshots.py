"""Sampling from the swarm's snapshots: one is fetched for many rounds, and each of its groups is used once."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.wire import SignedGroup, WireError, group_id, unpack

AWAY_S = 600.0
"""A coordinator without snapshots, or whose snapshots do not read, is asked again after so long."""
REMEMBERED = 4096
"""Groups that were sampled before: snapshots overlap."""


class SnapshotReader:
    """clock: seconds that are never set back. rng: which groups."""

    def __init__(self, client: NodeClient, clock: Callable[[], float], rng: random.Random | None = None) -> None:
        self._client, self._clock, self._rng = client, clock, rng or random.Random()
        self._id = ""
        self._left: list[msgspec.Raw] = []
        self._used: dict[bytes, None] = {}
        self._next = 0.0

    async def sample(self, want: int) -> list[msgspec.Raw]:
        """Up to `want` groups of others, uniform over what was not used yet; fewer where the snapshots hold no more."""
        if len(self._left) < want and self._clock() >= self._next:
            await self._fetch()
        taken, self._left = self._left[:want], self._left[want:]
        return taken

    async def _fetch(self) -> None:
        try:
            news, found = await self._client.snapshot(self._id)
        except CoordinatorError:
            self._next = self._clock() + AWAY_S
            return
        self._id, self._next = news.id, self._clock() + max(1.0, min(news.every_s, AWAY_S))
        if found is not None:
            self._left = [raw for raw in found.groups if self._is_new(raw)]
            self._rng.shuffle(self._left)

    def _is_new(self, raw: msgspec.Raw) -> bool:
        """Another's group that no snapshot had before."""
        try:
            group = unpack(raw, SignedGroup)
        except WireError:
            return False
        key = group_id(group.body)
        if key in self._used or group.key == self._client.identity.public_key:
            return False
        self._used[key] = None
        while len(self._used) > REMEMBERED:
            del self._used[next(iter(self._used))]
        return True
