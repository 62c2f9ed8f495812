"""A sample in the making: one group of each source, fairly among invites, then more of each in turn where sources are few.

Pure bookkeeping; the random source is passed in.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sapo_swarm.coordinator.domain.records import SAMPLE_BYTES, Entry, fits, invite_share

LOOKED_AT = 512
"""Sources at most that one turn looks at: more than a caller can have groups of."""

EVEN = 0.5
"""Part of a sample's sources that must be able to give one more: who has the most is not to fill what others leave."""


class Draw:
    """What is taken so far, how much of each source and of each invite. want: groups; have: ids that the caller has."""

    def __init__(self, want: int, caller: str, have: frozenset[bytes], accepts: frozenset[str]) -> None:
        self.want, self.caller, self.accepts = want, caller, accepts
        self.taken: list[Entry] = []
        self.of_node: Counter[str] = Counter()
        self.of_invite: Counter[str] = Counter()
        self._invite_of: dict[str, str] = {}
        self._known = set(have)

    def fits(self, entry: Entry) -> bool:
        """The caller may have it, and has it neither before nor by this sample."""
        return entry.node != self.caller and entry.id not in self._known and fits(entry, self.accepts)

    def crowded(self, entry: Entry, most: int | None = None) -> bool:
        """Its invite has its share already. most: the share (default: of the groups wanted)."""
        share = invite_share(self.want) if most is None else most
        return bool(entry.invite) and self.of_invite[entry.invite] >= share

    def take(self, entry: Entry) -> None:
        """Into the sample."""
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
        groups: Callable[[str], Iterable[Entry]],
    ) -> list[Entry]:
        """What is taken, and while groups are missing one of each source that has given none; then one more of each in turn, up
        to per_source, as long as EVEN of them can. In the order and within the bytes of a reply. sources: of each invite, those
        that it admitted. groups: those of a source."""
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
        groups: Callable[[str], Iterable[Entry]],
        given: int,
    ) -> None:
        """One more of each of these sources that gave so many, as long as groups are wanted. The next one is always of the invite
        that is there least."""
        if len(self.taken) >= self.want:
            return
        least = [(self._crowd(invite), rng.random(), invite, shuffled(rng, nodes)) for invite, nodes in sources.items()]
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
        """Groups of an invite so far; sources that no invite admitted are no crowd."""
        return self.of_invite[invite] if invite else 0


def shuffled(rng: random.Random, nodes: Sequence[str]) -> Iterator[str]:
    """All of them in random order (Fisher and Yates), at the cost of those that are asked for: `nodes` stays as it is."""
    moved: dict[int, str] = {}
    for last in range(len(nodes) - 1, -1, -1):
        place = int(rng.random() * (last + 1))
        yield moved.get(place, nodes[place])
        moved[place] = moved.get(last, nodes[last])


def within_budget(entries: Sequence[Entry], rng: random.Random) -> list[Entry]:
    """Of entries, those that fit a reply together, in their order. They claim it in the order of a weighted random sample
    (Efraimidis and Spirakis, 2006), the weight one over the size: large groups leave room for small ones, and still come in
    among many of those."""
    left, kept = SAMPLE_BYTES, list[int]()
    for place in sorted(range(len(entries)), key=lambda place: rng.expovariate(1.0) * len(entries[place].blob)):
        if len(entries[place].blob) <= left:
            left -= len(entries[place].blob)
            kept.append(place)
    return [entries[place] for place in sorted(kept)]
