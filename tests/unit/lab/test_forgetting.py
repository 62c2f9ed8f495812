"""The drop from the best point of a held-out curve, which noise alone must not make."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from sapo_lab.report.results import HeldOut, RunResult


def point(number: int, even: float, odd: float) -> HeldOut:
    both = (even + odd) / 2
    return HeldOut(number, 0.0, both, {"a": both}, 1, False, {}, ({"a": even}, {"a": odd}))


def run(points: Sequence[HeldOut]) -> RunResult:
    return RunResult("arm", 1, 8, *[np.zeros(1)] * 13, 0.0, 0.0, tuple(points), True, {})


def test_what_both_halves_had_and_lost_is_the_drop() -> None:
    curve = [point(0, 0.9, 0.9), point(1, 0.1, 0.1), point(2, 0.5, 0.5), point(3, 0.3, 0.3)]
    assert run(curve).forgetting() == pytest.approx(0.2), "the untrained model, round 0, has nothing to forget"


def test_a_peak_that_only_one_half_saw_is_none() -> None:
    curve = [point(1, 0.2, 0.2), point(2, 0.6, 0.2), point(3, 0.2, 0.2)]
    assert run(curve).forgetting() == pytest.approx(0.0)
    assert max(h.tasks["a"] for h in curve) - curve[-1].tasks["a"] == pytest.approx(0.2)


def test_noise_alone_drops_nothing_on_average() -> None:
    rng = np.random.default_rng(0)
    runs = [run([point(t, *rng.normal(0.1, 0.03, 2)) for t in range(1, 5)]) for _ in range(4000)]
    assert abs(np.mean([one.forgetting() for one in runs])) < 0.002
    best = [max(h.tasks["a"] for h in one.held_out) - one.held_out[-1].tasks["a"] for one in runs]
    assert np.mean(best) > 0.015, "the best of four noisy points is too high"


def test_a_task_that_is_still_at_its_best_has_dropped_nothing() -> None:
    assert run([point(1, 0.0, 0.0), point(2, 0.0, 0.0)]).forgetting() == 0.0
    assert run([point(1, 0.1, 0.1), point(2, 0.2, 0.3)]).forgetting() == 0.0


def test_one_node_or_one_point_says_nothing() -> None:
    alone = HeldOut(1, 0.0, 0.5, {"a": 0.5}, 1, False, {}, ({"a": 0.5}, {}))
    assert math.isnan(run([alone, alone]).forgetting())
    assert math.isnan(run([point(1, 0.5, 0.5)]).forgetting())
