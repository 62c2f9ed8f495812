"""The lab's judge and its figures: tests, intervals, gains."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sapo_lab
from sapo_lab.report.statistics import mean_interval, nonzero_advantage_share, paired_gain
from sapo_lab.running.held_out import assign_items, registered_items
from sapo_lab.running.judge import better_from, holm_correction, sign_flip
from sapo_lab.running.judge import pick_judge_question as judge_question
from sapo_lab.schema import load_experiment
from sapo_swarm.tasks.catalogue import held_out


def verdicts(rates: list[float], seed: int) -> dict[tuple[int, int], float]:
    random = np.random.default_rng(seed)
    return {(s, t): float(np.mean(random.random(8) < rate)) for s in (1, 2, 3) for t, rate in enumerate(rates)}


def test_the_judge_finds_the_round_from_which_the_swarm_is_better() -> None:
    silo = verdicts([0.05] * 300, 0)
    assert better_from(verdicts([0.05] * 150 + [0.3] * 150, 1), silo) == 150
    assert better_from(verdicts([0.05] * 300, 2), silo) is None
    assert better_from(verdicts([0.3] * 250 + [0.05] * 50, 3), silo) is None


def test_holm_adjusts_the_smallest_most_and_never_reorders() -> None:
    assert holm_correction([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_sign_flip_test_of_pure_gains_is_as_small_as_the_flips_allow() -> None:
    assert sign_flip(np.full(20, 0.5)) < 1e-3
    assert sign_flip(np.array([0.5, -0.5] * 10)) > 0.3


def test_the_judge_asks_what_no_other_evaluation_asks() -> None:
    asked = {judge_question(("bf", "arc_1d"), "starter", t) for t in range(50)}
    assert len(asked) == 50
    assert {ref.dataset for ref in asked} == {"bf", "arc_1d"}
    assert min(ref.index for ref in asked) > 10_000  # final_items at most


# Figures


def test_one_seed_has_a_value_and_no_interval() -> None:
    found = mean_interval([0.5])
    assert found.value == 0.5
    assert math.isnan(found.low)


def test_the_gain_is_paired_by_seed_and_relative_to_the_other_arm() -> None:
    found = paired_gain({1: 12.0, 2: 24.0, 3: 99.0, 4: math.nan}, {1: 10.0, 2: 20.0, 4: 5.0})
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2)), "every seed gained a fifth"
    assert math.isnan(paired_gain({1: 12.0}, {1: 10.0}).low)
    assert math.isnan(paired_gain({1: 12.0}, {1: 0.0}).value)


@pytest.mark.parametrize("gain", [0.0, 0.8, 2.5])
def test_the_interval_of_a_gain_holds_the_truth_19_times_in_20(gain: float) -> None:
    """Both arms vary over seeds. A difference as a part of a fixed baseline held +250 % of three seeds 91 times in 100."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(4000):
        silo, swarm = 1 + 0.1 * rng.standard_normal((2, 3))
        found = paired_gain(dict(enumerate((1 + gain) * swarm)), dict(enumerate(silo)))
        held += found.low <= gain <= found.high
    assert held / 4000 == pytest.approx(0.95, abs=0.012)


@given(st.floats(0.0, 1.0), st.integers(2, 16))
def test_the_nonzero_advantage_share_agrees_with_counting(p: float, size: int) -> None:
    drawn = np.random.default_rng(0).random((4000, size)) < p
    assert abs(nonzero_advantage_share(p, size) - np.mean(drawn.any(1) & ~drawn.all(1))) < 0.04


def test_every_item_is_answered_by_so_many_nodes() -> None:
    refs = [held_out("bf", "starter", n) for n in range(21)]
    for answers in (1, 2, 4):
        hands = [assign_items(refs, place, 4, answers) for place in range(4)]
        assert Counter(ref for hand in hands for ref in hand) == dict.fromkeys(refs, answers)


def test_the_questions_of_an_end_are_those_that_were_registered() -> None:
    experiment = load_experiment(sapo_lab.list_experiments()["decomposition"])
    arm = experiment.arm("silo")
    items = registered_items(experiment, arm)
    assert len(items) == len(arm.run.tasks) * experiment.final_items
    assert {item.index for item in items} == set(range(300_000, 300_000 + experiment.final_items))
