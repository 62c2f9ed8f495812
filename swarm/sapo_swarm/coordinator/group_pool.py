"""The pool of live groups, in memory, and the sample that a node draws from it. Pure; the clock is passed in."""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sapo_swarm.coordinator.records import AHEAD_S, SAMPLE_BYTES, PoolEntry, PoolLimits, invite_share, is_task_accepted
from sapo_swarm.protocol.phrase_watch import RecentFingerprints

# A sample being drawn: one group of each source, fairly among invites, then more of each in turn if sources are few.
#
# Pure bookkeeping; the random source is passed in.

LOOKED_AT = 512
"""Most sources that one turn looks at: more than the groups a caller can have."""

EVEN = 0.5
"""Share of a sample's sources that must be able to give one more: the source with most groups must not fill what others
leave."""


class SampleDraw:
    """The groups taken so far, counted per source and per invite. want: groups; have: ids that the caller has."""

    def __init__(self, want: int, caller: str, have: frozenset[bytes], accepts: frozenset[str]) -> None:
        self.want, self.caller, self.accepts = want, caller, accepts
        self.taken: list[PoolEntry] = []
        self.of_node: Counter[str] = Counter()
        self.of_invite: Counter[str] = Counter()
        self._invite_of: dict[str, str] = {}
        self._known = set(have)

    def fits(self, entry: PoolEntry) -> bool:
        """The caller may have the group, and does not have it yet, from before or in this sample."""
        return entry.node != self.caller and entry.id not in self._known and is_task_accepted(entry, self.accepts)

    def crowded(self, entry: PoolEntry, most: int | None = None) -> bool:
        """Its invite has its share already. most: the share (default: of the groups wanted)."""
        share = invite_share(self.want) if most is None else most
        return bool(entry.invite) and self.of_invite[entry.invite] >= share

    def take(self, entry: PoolEntry) -> None:
        """Add to the sample."""
        self.taken.append(entry)
        self._known.add(entry.id)
        self.of_node[entry.node] += 1
        self.of_invite[entry.invite] += 1
        self._invite_of[entry.node] = entry.invite

    def fill(
        self,
        rng: random.Random,
        per_source: int,
        sources: Mapping[str, Sequence[str]],
        groups: Callable[[str], Iterable[PoolEntry]],
    ) -> list[PoolEntry]:
        """The groups taken; while groups are missing, one of each source that has given none; then one more of each in turn,
        up to per_source, as long as EVEN of them can. In the order and within the bytes of a reply. sources: per invite,
        those that it admitted. groups: those of a source."""
        self._turn(rng, sources, groups, 0)
        for turn in range(1, per_source):
            if len(self.taken) >= self.want:
                break
            giving: dict[str, list[str]] = {}
            for node, invite in self._invite_of.items():
                if self.of_node[node] == turn and any(self.fits(entry) for entry in groups(node)):
                    giving.setdefault(invite, []).append(node)
            if sum(map(len, giving.values())) < EVEN * len(self.of_node):
                break
            self._turn(rng, giving, groups, turn)
        return within_budget(self.taken, rng)

    def _turn(
        self,
        rng: random.Random,
        sources: Mapping[str, Sequence[str]],
        groups: Callable[[str], Iterable[PoolEntry]],
        given: int,
    ) -> None:
        """Take one more of each of these sources that has given `given`, as long as groups are wanted. The next one always
        comes from the invite with the fewest."""
        if len(self.taken) >= self.want:
            return
        least = [
            (self._crowd(invite), rng.random(), invite, iter_shuffled(rng, nodes)) for invite, nodes in sources.items()
        ]
        heapq.heapify(least)
        for _ in range(LOOKED_AT):
            if not least or len(self.taken) >= self.want:
                return
            _, order, invite, nodes = heapq.heappop(least)
            node = next((node for node in nodes if self.of_node[node] == given), None)
            if node is None:
                continue
            fresh = [entry for entry in groups(node) if self.fits(entry)]
            if fresh:
                self.take(rng.choice(fresh))
            heapq.heappush(least, (self._crowd(invite), order, invite, nodes))

    def _crowd(self, invite: str) -> int:
        """Groups of an invite so far; sources that no invite admitted do not count as a crowd."""
        return self.of_invite[invite] if invite else 0


def iter_shuffled(rng: random.Random, nodes: Sequence[str]) -> Iterator[str]:
    """All of them in random order (Fisher and Yates), at a cost proportional to those consumed: `nodes` stays unchanged."""
    moved: dict[int, str] = {}
    for last in range(len(nodes) - 1, -1, -1):
        place = int(rng.random() * (last + 1))
        yield moved.get(place, nodes[place])
        moved[place] = moved.get(last, nodes[last])


def within_budget(entries: Sequence[PoolEntry], rng: random.Random) -> list[PoolEntry]:
    """The entries that fit into one reply together, in their order. They claim space in the order of a weighted random sample
    (Efraimidis and Spirakis, 2006), the weight being one over the size: large groups leave room for small ones, and still get
    in among many small ones."""
    left, places = SAMPLE_BYTES, list[int]()
    for place in sorted(range(len(entries)), key=lambda place: rng.expovariate(1.0) * len(entries[place].blob)):
        if len(entries[place].blob) <= left:
            left -= len(entries[place].blob)
            places.append(place)
    return [entries[place] for place in sorted(places)]


# The pool of live groups, in memory: a dense array (uniform sampling), an age order, and a list per source and per
# invite.
#
# Pure bookkeeping: the clock and the random source are passed in.


@dataclass(slots=True)
class PoolSlot:
    """A live group. key: its row in the store; at: Unix time of its arrival; place: its index in the dense array."""

    key: int
    entry: PoolEntry
    at: float
    place: int


def _key(content: str) -> int:
    """For RecentFingerprints, which are not saved here: Python has this hash of a string already."""
    return hash(content) & (2**64 - 1) | 2


class SourceIndex:
    """Nodes with a live group, as a dense list for each invite that admitted some."""

    def __init__(self) -> None:
        self.of_invite: dict[str, list[str]] = {}
        self._place: dict[str, tuple[str, int]] = {}

    def add(self, node: str, invite: str) -> None:
        """Add a node that is not there."""
        nodes = self.of_invite.setdefault(invite, [])
        self._place[node] = invite, len(nodes)
        nodes.append(node)

    def remove(self, node: str) -> None:
        """Remove a node that is there: the last one of its list takes its place."""
        invite, place = self._place.pop(node)
        nodes = self.of_invite[invite]
        last = nodes.pop()
        if last != node:
            nodes[place] = last
            self._place[last] = invite, place
        if not nodes:
            del self.of_invite[invite]


class GroupPool:
    """At most `per_node` live groups of one source: its newest replaces its oldest, never another's.

    When the pool is full of groups, the oldest of all is dropped; when it is full of bytes, the oldest of a source that holds
    more than an equal share: a source that holds less loses nothing to others' larger groups. The contents of dropped or
    expired groups still count as held, for as many contents as the pool has room for and up to twice that, so that copies of
    them are refused.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.bytes = 0
        self.next_key = 1
        self._dense: list[PoolSlot] = []
        self._by_age: OrderedDict[int, PoolSlot] = OrderedDict()
        self._by_node: dict[str, deque[PoolSlot]] = {}
        self._contents: set[str] = set()
        self._gone = RecentFingerprints(limits.capacity)
        self._sources = SourceIndex()
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
        """Most groups that one source may hold: an equal share of the pool if that is less than per_node."""
        sources = max(1, len(self._by_node))
        return max(1, min(self.limits.per_node, self.limits.capacity // sources))

    def add(self, entry: PoolEntry, now: float, key: int | None = None) -> tuple[int, list[int]]:
        """The new group's key, and the keys of dropped groups. The caller has checked for copies."""
        gone: list[int] = []
        own: deque[PoolSlot] = self._by_node.get(entry.node, deque())
        while len(own) >= self.room:
            gone.append(self._give_way(own[0]))
        while len(self._dense) >= self.limits.capacity:
            gone.append(self._give_way(next(iter(self._by_age.values()))))
        while self._dense and self.bytes + len(entry.blob) > self.limits.capacity_bytes:
            gone.append(self._give_way(self._by_node[self._heavy(entry)][0]))
        slot = PoolSlot(self.next_key if key is None else key, entry, now, len(self._dense))
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
        """Remove groups older than the lifetime, or dated by a clock that was set back since; returns the keys."""
        gone: list[int] = []
        while self._by_age:
            oldest = next(iter(self._by_age.values()))
            if -AHEAD_S <= now - oldest.at <= self.limits.lifetime_s:
                break
            gone.append(self._give_way(oldest))
        return gone

    def drop_node(self, node: str) -> list[int]:
        """Remove every group of a source; returns the keys."""
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
    ) -> list[PoolEntry]:
        """Up to `want` groups, uniform over other nodes' live slots, none of `have`, and no more than invite_share(want) of
        one invite while others have groups; of members' custom tasks only those in `accepts`. One of each source; if there
        are fewer sources than groups wanted, in turn up to per_source.

        Random slots with rejection; if those miss, random sources of the invites with the fewest groups.
        """
        draw = SampleDraw(want, caller, have, accepts)
        sources = len(self._by_node) - (caller in self._by_node)
        first, share = min(want, sources), invite_share(min(want, sources))
        for _ in range(4 * first + 8):
            if len(draw.taken) >= first:
                break
            entry = self._dense[int(rng.random() * len(self._dense))].entry if self._dense else None
            if entry is None or draw.of_node[entry.node] or not draw.fits(entry):
                continue
            if len(self._sources.of_invite) < 2 or not draw.crowded(entry, share):
                draw.take(entry)
        of_invite = self._sources.of_invite
        return draw.fill(rng, per_source, of_invite, lambda node: (slot.entry for slot in self._by_node[node]))

    def _heavy(self, entry: PoolEntry) -> str:
        """The source that loses a group to this entry: one that holds more than an equal share of the bytes, the entry's own
        first.

        Each search continues where the last one ended. If there is no such source (a group larger than a share came), it is
        the next one.
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

    def _give_way(self, slot: PoolSlot) -> int:
        self._gone.add(_key(slot.entry.content))
        return self._remove(slot)

    def _remove(self, slot: PoolSlot) -> int:
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
