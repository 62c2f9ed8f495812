"""The figures of a swarm: counters of the last hour, and how people see them (leaderboard, rates, reward trend). Pure."""

from __future__ import annotations

import sys
from collections import OrderedDict

import msgspec

from sapo_swarm.coordinator.records import ACTIVE_S, AHEAD_S, MINUTE, WINDOW_MINUTES, WindowStats
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import Leaderboard, LeaderRow

# Counters of the last hour by minute, with running totals per node; pure, the clock is passed in.


class WindowCounters:
    """minutes: the counters that belong to no node. groups, sampled: node -> count in the window. seen: node -> its last
    exchange in that window. dirty: (minute, key) -> what was added since it was last cleared."""

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
        """Forget minutes that left the window, and those of a clock that was set back; returns the newest that left it."""
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


# From the store's counters to what people see: leaderboard, rates, task mix, reward trend. Pure.


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the status page. tasks, refused: share of groups by name, most first. minutes: oldest first.

    rounds, rewards: one value a minute for the last hour; reward: mean of what nodes report of themselves, or None.
    """

    time: float
    nodes: int
    members: int
    pool: int
    groups_hour: int
    rounds_per_s: float
    tasks: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]
    rounds: tuple[int, ...]
    rewards: tuple[float | None, ...]
    leaders: tuple[LeaderRow, ...]


def build_leaderboard(stats: WindowStats, now: float) -> Leaderboard:
    """The window's nodes with most groups first; names made safe to show."""
    rows = tuple(
        LeaderRow(
            node=row.member.node,
            name=safe_text(row.member.name, 40, lines=False),
            model=row.member.model,
            groups=row.groups,
            share=row.groups / stats.total if stats.total else 0.0,
            uptake=row.sampled,
            seen_s=round(max(0.0, now - row.seen), 1) if row.seen else -1.0,
        )
        for row in stats.rows
    )
    return Leaderboard(window_s=float(WINDOW_MINUTES * MINUTE), total=stats.total, nodes=rows)


def rounds_per_s(stats: WindowStats, now: float) -> float:
    """Over the current minute and the one before it."""
    minute = int(now) // MINUTE
    rounds = sum(stats.minutes.get(m, {}).get("rounds", 0.0) for m in (minute - 1, minute))
    return rounds / (MINUTE + now % MINUTE)


def build_overview(stats: WindowStats, now: float) -> Overview:
    """The figures of the status page at this Unix time."""
    newest = int(now) // MINUTE
    minutes = [stats.minutes.get(m, {}) for m in range(newest - WINDOW_MINUTES + 1, newest + 1)]
    return Overview(
        time=now,
        nodes=stats.nodes,
        members=stats.members,
        pool=stats.pool,
        groups_hour=stats.total,
        rounds_per_s=round(rounds_per_s(stats, now), 2),
        tasks=_totals(minutes, "t/"),
        refused=_totals(minutes, "x/"),
        rounds=tuple(int(counts.get("rounds", 0)) for counts in minutes),
        rewards=tuple(
            round(counts.get("reward_sum", 0.0) / counts["reward_n"], 4) if counts.get("reward_n") else None
            for counts in minutes
        ),
        leaders=build_leaderboard(stats, now).nodes[:20],
    )


def _totals(minutes: list[dict[str, float]], prefix: str) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for counts in minutes:
        for key, value in counts.items():
            if key.startswith(prefix):
                totals[key[len(prefix) :]] = totals.get(key[len(prefix) :], 0) + int(value)
    return tuple(sorted(totals.items(), key=lambda item: (-item[1], item[0])))
