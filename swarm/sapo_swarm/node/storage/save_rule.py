"""When a checkpoint is due, as a pure rule over the clock: often enough that a kill costs little, seldom enough for the disk."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 86400.0
BYTES_A_DAY = 10 * 10**9
"""Checkpoints that are due by time alone write at most so much; the update log and the journal come on top."""


@dataclass(frozen=True, slots=True)
class SaveRule:
    """minutes: between two checkpoints, at least. rounds: fewest between two."""

    minutes: float
    rounds: int = 1

    def interval_s(self, size: int) -> float:
        """Seconds between two checkpoints of so many bytes."""
        return max(60.0 * self.minutes, size * DAY_S / BYTES_A_DAY)

    def due(self, size: int, since_s: float, rounds_since: int) -> bool:
        """size: bytes of the next checkpoint; seconds and rounds since the last one."""
        return rounds_since >= max(self.rounds, 1) and since_s >= self.interval_s(size)
