"""How many completions are sampled at once: all of them, unless interruptions come faster than a batch gets anywhere."""

from __future__ import annotations

SHRINK = 4


class Portion:
    """Rows in one call of the engine; 0 = all. A call that is interrupted makes the next ones smaller, one that comes to its
    end makes them larger again: an undisturbed node never works in small batches."""

    def __init__(self) -> None:
        self.rows = 0

    def interrupted(self, rows: int) -> None:
        """A call with so many rows was cancelled. What it had is kept, but to continue a completion its text has to be read
        again, which takes time before the first new token: with fewer rows less."""
        self.rows = max(1, rows // SHRINK)

    def completed(self, rows: int) -> None:
        """A call with so many rows came to its end."""
        self.rows = 0 if not self.rows or rows < self.rows else 2 * self.rows

    def of(self, rows: int) -> int:
        """Rows of the next call when so many are left."""
        return min(rows, self.rows or rows)
