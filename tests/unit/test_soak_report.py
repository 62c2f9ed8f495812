"""Growth of a process as a soak reports it: what it holds on to, not what it needs for a moment."""

from __future__ import annotations

import random

from tests.support.soak_report import slope


def test_a_process_that_needs_more_now_and_then_does_not_grow() -> None:
    """Sixty megabytes for an update, met by chance by a sample every twenty seconds of two hours."""
    rng = random.Random(1)
    samples = [{"t": 20.0 * n, "rss": 485e6 + (60e6 if rng.random() < 0.3 else 0.0)} for n in range(360)]
    assert slope(samples, "rss") == 0.0
    assert slope(samples, "rss", 0.0) != 0.0


def test_a_process_that_grows_is_seen_to_grow() -> None:
    samples = [{"t": 20.0 * n, "rss": 485e6 + 3e6 * n / 180 + (n % 3) * 20e6} for n in range(360)]
    assert 2.8 < slope(samples, "rss") < 3.2


def test_memory_that_was_given_back_for_a_moment_does_not_hide_growth() -> None:
    """Of two hours' samples every five seconds four are 100 MB lower, all of them late."""
    samples = [
        {"t": 5.0 * n, "rss": 455e6 + 3e6 * n / 720 - (100e6 if n in (1100, 1210, 1300, 1430) else 0)}
        for n in range(1440)
    ]
    assert 2.8 < slope(samples, "rss") < 3.2
