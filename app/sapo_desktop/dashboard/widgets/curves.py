"""From what the dashboard remembers of a run to marks of a chart."""

from __future__ import annotations

from sapo_desktop.dashboard.history.figures import Figures
from sapo_desktop.dashboard.widgets.canvas import Mark


def heldout_marks(figures: Figures) -> list[Mark]:
    """Held-out results with their intervals."""
    held = figures.held_out
    lows, highs = held.low.buckets(), held.high.buckets()
    together = zip(held.mean.buckets(), lows, highs, strict=True)
    return [Mark(x, y, low, high) for (_, x, y), (_, _, low), (_, _, high) in together]
