"""Counters of the last hour by minute, with running totals per node; pure, the clock is passed in."""

from __future__ import annotations

import sys
from collections import OrderedDict

from sapo_swarm.coordinator.domain.records import ACTIVE_S, AHEAD_S, MINUTE, WINDOW_MINUTES


class Counters:
    """minutes: the counters that belong to no node. groups, sampled: node -> count in the window. seen: node -> its last exchange
    in that window. dirty: (minute, key) -> what was added since it was last cleared."""

    def __init__(self) -> None:
        self.minutes: dict[int, dict[str, float]] = {}
        self._of_nodes: dict[int, dict[str, int]] = {}
        self.groups: dict[str, int] = {}
        self.sampled: dict[str, int] = {}
        self.total = 0
        self.seen: OrderedDict[str, float] = OrderedDict()
        self.dirty: dict[tuple[int, str], float] = {}
        self._present: OrderedDict[str, float] = OrderedDict()

    def add(self, minute: int, key: str, value: float, dirty: bool = True) -> None:
        """Keys as in WindowStats, and "g/NODE" groups accepted, "d/NODE" times sampled."""
        if not value:
            return
        of_node = key.startswith(("g/", "d/"))
        if of_node:
            counts, key = self._of_nodes.setdefault(minute, {}), sys.intern(key)  # one text for its 60 minutes
            counts[key] = counts.get(key, 0) + int(value)
            self._window(key, int(value))
        else:
            bucket = self.minutes.setdefault(minute, {})
            bucket[key] = bucket.get(key, 0.0) + value
        if dirty:
            self.dirty[minute, key] = self.dirty.get((minute, key), 0.0) + value

    def mark_seen(self, node: str, now: float) -> None:
        """The node exchanged at this time (Unix time)."""
        self.seen[node] = now
        self.seen.move_to_end(node)
        self._present[node] = now
        self._present.move_to_end(node)

    def present(self, now: float) -> int:
        """Nodes seen in the last ACTIVE_S."""
        while self._present and not -AHEAD_S <= now - next(iter(self._present.values())) <= ACTIVE_S:
            self._present.popitem(last=False)
        return len(self._present)

    def prune(self, now: float) -> int:
        """Forget minutes that left the window, and those of a clock that was set back: the newest that left it."""
        edge = int(now) // MINUTE - WINDOW_MINUTES
        for minute in {m for m in (*self.minutes, *self._of_nodes) if not edge < m <= edge + WINDOW_MINUTES + 1}:
            self.minutes.pop(minute, None)
            for key, value in self._of_nodes.pop(minute, {}).items():
                self._window(key, -value)
        while self.seen and not edge < next(iter(self.seen.values())) // MINUTE <= edge + WINDOW_MINUTES + 1:
            self.seen.popitem(last=False)
        return edge

    def recent(self) -> dict[int, dict[str, float]]:
        """The counters that belong to no node, by minute."""
        return {minute: dict(counts) for minute, counts in self.minutes.items()}

    def _window(self, key: str, change: int) -> None:
        kind, node = key[:2], key[2:]
        counts = self.groups if kind == "g/" else self.sampled
        counts[node] = counts.get(node, 0) + change
        if not counts[node]:
            del counts[node]
        if kind == "g/":
            self.total += change
