"""Widths of texts that rich has measured.

It keeps the last 4,096, and most lines of a dashboard at work are drawn once: what is kept for minutes among what is gone at
once leaves holes, and the dashboard grew by 3 MB an hour. Emptied every minute it does not.
"""

from __future__ import annotations

from rich.cells import cached_cell_len

FORGET_S = 60.0
"""Seconds that a width may be kept."""


def forget() -> None:
    """All of them; texts that are drawn again are measured again."""
    cached_cell_len.cache_clear()
