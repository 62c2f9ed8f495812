"""The pool of live groups, in memory: a dense array (uniform sampling), an age order, and a list per source and per invite.

Pure bookkeeping: the clock and the random source are passed in.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from dataclasses import dataclass

from sapo_swarm.coordinator.domain.draw import Draw
from sapo_swarm.coordinator.domain.records import AHEAD_S, Entry, PoolLimits, invite_share
from sapo_swarm.protocol.drift.remembered import Remembered


@dataclass(slots=True)
class Slot:
    """A live group. key: its row in the store; at: Unix time it came; place: its index in the dense array."""

    key: int
    entry: Entry
    at: float
    place: int


def _key(content: str) -> int:
    """For Remembered, which is not kept here: Python has this hash of a string already."""
    return hash(content) & (2**64 - 1) | 2


class Sources:
    """Nodes with a live group, as a dense list for each invite that admitted some."""

    def __init__(self) -> None:
        self.of_invite: dict[str, list[str]] = {}
        self._place: dict[str, tuple[str, int]] = {}

    def add(self, node: str, invite: str) -> None:
        """A node that was not there."""
        nodes = self.of_invite.setdefault(invite, [])
        self._place[node] = invite, len(nodes)
        nodes.append(node)

    def remove(self, node: str) -> None:
        """A node that is there: the last one of its list takes its place."""
        invite, place = self._place.pop(node)
        nodes = self.of_invite[invite]
        last = nodes.pop()
        if last != node:
            nodes[place] = last
            self._place[last] = invite, place
        if not nodes:
            del self.of_invite[invite]


class GroupPool:
    """At most `per_node` groups of one source live: its newest replaces its oldest, never another's.

    When the pool is full of groups, the oldest of all gives way; when it is full of bytes, the oldest of a source that holds more
    than an equal part: who holds less loses nothing to larger groups of others. The content of what gave way or expired counts as
    held, as many contents as the pool has room for and up to twice that, so that copies of it are refused.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.bytes = 0
        self.next_key = 1
        self._dense: list[Slot] = []
        self._by_age: OrderedDict[int, Slot] = OrderedDict()
        self._by_node: dict[str, deque[Slot]] = {}
        self._contents: set[str] = set()
        self._gone = Remembered(limits.capacity)
        self._sources = Sources()
        self._bytes_of: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._dense)

    def __contains__(self, content: str) -> bool:
        return content in self._contents or _key(content) in self._gone

    def nodes(self) -> int:
        """Sources with at least one live group."""
        return len(self._by_node)

    @property
    def room(self) -> int:
        """Groups that one source may hold: an equal part of the pool where that is less than per_node."""
        sources = max(1, len(self._by_node))
        return max(1, min(self.limits.per_node, self.limits.capacity // sources))

    def add(self, entry: Entry, now: float, key: int | None = None) -> tuple[int, list[int]]:
        """The new group's key, and the keys that gave way. The caller looked for copies before."""
        gone: list[int] = []
        own: deque[Slot] = self._by_node.get(entry.node, deque())
        while len(own) >= self.room:
            gone.append(self._give_way(own[0]))
        while len(self._dense) >= self.limits.capacity:
            gone.append(self._give_way(next(iter(self._by_age.values()))))
        while self._dense and self.bytes + len(entry.blob) > self.limits.capacity_bytes:
            gone.append(self._give_way(self._by_node[self._heavy(entry)][0]))
        slot = Slot(self.next_key if key is None else key, entry, now, len(self._dense))
        self.next_key = max(self.next_key, slot.key) + 1
        self._dense.append(slot)
        self._by_age[slot.key] = slot
        if entry.node not in self._by_node:
            self._by_node[entry.node] = deque()
            self._sources.add(entry.node, entry.invite)
        self._by_node[entry.node].append(slot)
        self._contents.add(entry.content)
        self.bytes += len(entry.blob)
        self._bytes_of[entry.node] = self._bytes_of.get(entry.node, 0) + len(entry.blob)
        return slot.key, gone

    def expire(self, now: float) -> list[int]:
        """Remove what is older than the lifetime, or of a clock that was set back: the keys."""
        gone: list[int] = []
        while self._by_age:
            oldest = next(iter(self._by_age.values()))
            if -AHEAD_S <= now - oldest.at <= self.limits.lifetime_s:
                break
            gone.append(self._give_way(oldest))
        return gone

    def drop_node(self, node: str) -> list[int]:
        """Remove every group of a source: the keys."""
        return [self._remove(slot) for slot in list(self._by_node.get(node, ()))]

    def drop(self, key: int) -> None:
        """Remove one group, if it is still there."""
        slot = self._by_age.get(key)
        if slot is not None:
            self._remove(slot)

    def sample(
        self,
        rng: random.Random,
        want: int,
        caller: str,
        have: frozenset[bytes],
        accepts: frozenset[str] = frozenset(),
        per_source: int = 1,
    ) -> list[Entry]:
        """Up to `want` groups, uniform over the live slots of others, none of `have`, and no more than invite_share(want) of one
        invite while others have groups; of members' own tasks only those in `accepts`. One of each source; where there are
        fewer sources than groups wanted, in turn up to per_source.

        Random slots with rejection; where those miss, random sources of the invites that are there least.
        """
        draw = Draw(want, caller, have, accepts)
        sources = len(self._by_node) - (caller in self._by_node)
        first, most = min(want, sources), invite_share(min(want, sources))
        for _ in range(4 * first + 8):
            if len(draw.taken) >= first:
                break
            entry = self._dense[int(rng.random() * len(self._dense))].entry if self._dense else None
            if entry is None or draw.of_node[entry.node] or not draw.fits(entry):
                continue
            if len(self._sources.of_invite) < 2 or not draw.crowded(entry, most):
                draw.take(entry)
        of_invite = self._sources.of_invite
        return draw.fill(rng, per_source, of_invite, lambda node: (slot.entry for slot in self._by_node[node]))

    def _heavy(self, entry: Entry) -> str:
        """Whose group gives way to this one: a source that holds more than an equal part of the bytes, the entry's own first.

        Each look goes on where the last one ended. Without such a source (a group larger than a part came) it is the next one.
        """
        part = self.limits.capacity_bytes // (len(self._bytes_of) + (entry.node not in self._bytes_of))
        own = self._bytes_of.get(entry.node, 0)
        if own and own + len(entry.blob) > part:
            return entry.node
        for _ in range(len(self._bytes_of)):
            node = next(iter(self._bytes_of))
            if self._bytes_of[node] > part:
                break
            self._bytes_of.move_to_end(node)
        return next(iter(self._bytes_of))

    def _give_way(self, slot: Slot) -> int:
        self._gone.add(_key(slot.entry.content))
        return self._remove(slot)

    def _remove(self, slot: Slot) -> int:
        last = self._dense[-1]
        self._dense[slot.place] = last
        last.place = slot.place
        self._dense.pop()
        del self._by_age[slot.key]
        own = self._by_node[slot.entry.node]
        own.remove(slot)
        self._bytes_of[slot.entry.node] -= len(slot.entry.blob)
        if not own:
            del self._by_node[slot.entry.node], self._bytes_of[slot.entry.node]
            self._sources.remove(slot.entry.node)
        self._contents.discard(slot.entry.content)
        self.bytes -= len(slot.entry.blob)
        return slot.key
