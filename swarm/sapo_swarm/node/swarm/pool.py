"""Judged groups of others that wait for a batch: each is used once, and none after its time. Pure; the clock is passed in."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sapo_swarm.protocol.wire import MAX_WANT
from sapo_swarm.sapo.training_batch import NOTHING, strategy
from sapo_swarm.types import Group

POOL_GROUPS = 256
GROUP_LIFE_S = 900.0
"""A group that waited longer is dropped: its author's policy has moved on."""
LEAST_YIELD = 1 / 8
"""However few of the received groups were usable, at most 1/LEAST_YIELD times as many are requested."""


@dataclass(slots=True)
class Pool:
    """What the strategy `sampling` could sample. Raises UnknownName.

    per_source: groups of one node in a batch at most. unusable: groups that the strategy would never sample (without an
    advantage, mostly), and which are dropped. usable: part of what was received that came in here, lately.
    """

    sampling: str = "uniform_nonzero"
    per_source: int = 1
    limit: int = POOL_GROUPS
    life_s: float = GROUP_LIFE_S
    unusable: int = 0
    usable: float = 1.0
    _waiting: deque[tuple[float, Group]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        strategy(self.sampling)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: Group, now: float) -> None:
        """The oldest gives way when the pool is full."""
        if not strategy(self.sampling)([group], NOTHING)[0] > 0:
            self.unusable += 1
            return
        self._waiting.append((now, group))
        while len(self._waiting) > self.limit:
            self._waiting.popleft()

    def want(self, wanted: int, rounds: int, sources: int) -> int:
        """Groups to request where a batch may hold `wanted`: for two batches, or one more than there were rounds since the last
        exchange, less what waits for these, and some for what will be rejected."""
        batches = max(2, rounds + 1)
        waiting = self._of_sources(batches * self.per_source)
        missing = max(0, batches * min(wanted, sources * self.per_source) - waiting)
        return min(MAX_WANT, math.ceil(missing / max(self.usable, LEAST_YIELD)))

    def received(self, groups: Sequence[Group], of: int, now: float) -> None:
        """What passed of so many received groups comes in."""
        before = len(self)
        for group in groups:
            self.add(group, now)
        if of:
            self.usable += 0.2 * (max(0, len(self) - before) / of - self.usable)

    def forget_old(self, now: float) -> None:
        """Drop what waited longer than life_s. now: seconds that are never set back."""
        while self._waiting and now - self._waiting[0][0] > self.life_s:
            self._waiting.popleft()

    def available(self, wanted: int) -> int:
        """External groups that a batch could sample now, at most `wanted`."""
        return min(wanted, self._of_sources(self.per_source))

    def _of_sources(self, most: int) -> int:
        """Groups that wait, at most so many of each source."""
        return sum(min(most, count) for count in Counter(group.node for _, group in self._waiting).values())

    def groups(self) -> tuple[Group, ...]:
        """Everything that waits, oldest first."""
        return tuple(group for _, group in self._waiting)

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()

    def remove(self, used: Sequence[Group]) -> None:
        """These went into a batch."""
        gone = {(group.node, group.question.ref) for group in used}
        self._waiting = deque((t, g) for t, g in self._waiting if (g.node, g.question.ref) not in gone)
