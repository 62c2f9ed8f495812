"""A sample in the making: one group of each source, fairly among invites, then more of each in turn where sources are few.

Pure bookkeeping; the random source is passed in.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

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

    def fill(
        self,
        rng: random.Random,
        per_source: int,
        invites: Iterable[tuple[str, str]],
        groups: Callable[[str], Iterable[Entry]],
    ) -> list[Entry]:
        """What is taken, and while groups are missing one of each source that has given none; then one more of each in turn, up
        to per_source, as long as EVEN of them can. In the order and within the bytes of a reply. invites: each source and the
        invite that admitted it. groups: those of a source."""
        invite_of = dict(invites) if len(self.taken) < self.want else {}
        self._turn(rng, {node: invite for node, invite in invite_of.items() if not self.of_node[node]}, groups)
        for turn in range(1, per_source):
            giving = [node for node, given in self.of_node.items() if given == turn and node in invite_of]
            giving = [node for node in giving if any(self.fits(entry) for entry in groups(node))]
            if len(giving) < EVEN * len(self.of_node):
                break
            self._turn(rng, {node: invite_of[node] for node in giving}, groups)
        return within_budget(self.taken, rng)

    def _turn(self, rng: random.Random, invites: Mapping[str, str], groups: Callable[[str], Iterable[Entry]]) -> None:
        """One more of each of these sources, as long as groups are wanted. The next one is always of the invite that is there
        least."""
        of_invite: dict[str, list[str]] = {}
        for node, invite in invites.items():
            of_invite.setdefault(invite, []).append(node)
        least = [(self._crowd(invite), rng.random(), invite) for invite in of_invite]
        heapq.heapify(least)
        for _ in range(LOOKED_AT):
            if not least or len(self.taken) >= self.want:
                return
            _, order, invite = heapq.heappop(least)
            nodes = of_invite[invite]
            place = int(rng.random() * len(nodes))
            nodes[place], nodes[-1] = nodes[-1], nodes[place]
            fresh = [entry for entry in groups(nodes.pop()) if self.fits(entry)]
            if fresh:
                self.take(rng.choice(fresh))
            if nodes:
                heapq.heappush(least, (self._crowd(invite), order, invite))

    def _crowd(self, invite: str) -> int:
        """Groups of an invite so far; sources that no invite admitted are no crowd."""
        return self.of_invite[invite] if invite else 0


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
