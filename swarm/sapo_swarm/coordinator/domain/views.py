"""From the store's counters to what people see: leaderboard, rates, task mix, reward trend. Pure."""

from __future__ import annotations

import msgspec

from sapo_swarm.coordinator.domain.records import MINUTE, WINDOW_MINUTES, WindowStats
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import Leaderboard, LeaderRow


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


def leaderboard(stats: WindowStats, now: float) -> Leaderboard:
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
    """Over the minute that runs and the one before it."""
    minute = int(now) // MINUTE
    rounds = sum(stats.minutes.get(m, {}).get("rounds", 0.0) for m in (minute - 1, minute))
    return rounds / (MINUTE + now % MINUTE)


def overview(stats: WindowStats, now: float) -> Overview:
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
        leaders=leaderboard(stats, now).nodes[:20],
    )


def _totals(minutes: list[dict[str, float]], prefix: str) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for counts in minutes:
        for key, value in counts.items():
            if key.startswith(prefix):
                totals[key[len(prefix) :]] = totals.get(key[len(prefix) :], 0) + int(value)
    return tuple(sorted(totals.items(), key=lambda item: (-item[1], item[0])))
