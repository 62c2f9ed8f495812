"""Advantages: invariants that hold for every group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.sapo.training_batch import (
    MIN_SPREAD,
    AdvantageRule,
    as_rewards,
    assemble_batch,
    centred_advantages,
    leave_one_out,
    mean_normalised,
    normalised_advantages,
    reward_std,
)
from sapo_swarm.types import Group, Question, Rollout, TaskRef

RULES = (normalised_advantages, centred_advantages, leave_one_out, mean_normalised)
groups = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16).map(as_rewards)


@pytest.mark.parametrize("rule", RULES)
@given(rewards=groups)
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(
    rule: AdvantageRule, rewards: np.ndarray
) -> None:
    values = rule(rewards)
    assert values.dtype == np.float64
    assert abs(values.sum()) < 1e-9
    assert (np.diff(values[np.argsort(rewards)]) >= 0).all()


@pytest.mark.parametrize("rule", RULES)
@given(rewards=groups)
def test_a_group_has_advantages_exactly_when_its_spread_is_large_enough(
    rule: AdvantageRule, rewards: np.ndarray
) -> None:
    assert bool(rule(rewards).any()) == (reward_std(rewards) >= MIN_SPREAD)


@given(rewards=groups, shift=st.floats(-1, 1), scale=st.floats(1, 5))
def test_normalised_advantages_ignore_shift_and_scale_of_rewards(
    rewards: np.ndarray, shift: float, scale: float
) -> None:
    if reward_std(rewards) >= MIN_SPREAD:
        np.testing.assert_allclose(
            normalised_advantages(rewards * scale + shift), normalised_advantages(rewards), atol=1e-4
        )


@given(rewards=groups)
def test_normalised_advantages_have_unit_variance(rewards: np.ndarray) -> None:
    if reward_std(rewards) >= MIN_SPREAD:
        assert normalised_advantages(rewards).std() == pytest.approx(1.0, abs=1e-4)


@given(rewards=groups)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(rewards: np.ndarray) -> None:
    if reward_std(rewards) >= MIN_SPREAD:
        expected = [r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)]
        np.testing.assert_allclose(leave_one_out(rewards), expected, atol=1e-12)


@given(rewards=groups)
def test_mean_normalised_advantages_are_relative_to_the_mean_reward(rewards: np.ndarray) -> None:
    if reward_std(rewards) >= MIN_SPREAD:
        np.testing.assert_allclose(mean_normalised(rewards), (rewards - rewards.mean()) / rewards.mean(), atol=1e-9)


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 8])
def test_maxrl_follows_the_sum_of_pass_at_k_over_k_in_expectation(p: float, size: int) -> None:
    """A policy with one parameter, its success rate p: d log p(success) = 1 / p, d log p(failure) = -1 / (1 - p).

    The gradient of pass@k / k is (1 - p)^(k - 1); as a sum over k = 1 ... G - 1 (the mean as baseline costs the last).
    """
    expected = 0.0
    for successes in range(size + 1):
        chance = math.comb(size, successes) * p**successes * (1 - p) ** (size - successes)
        advantages = mean_normalised(as_rewards([1.0] * successes + [0.0] * (size - successes)))
        scores = np.array([1 / p] * successes + [-1 / (1 - p)] * (size - successes))
        expected += chance * float(np.mean(advantages * scores))
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, size)))


def test_a_single_success_among_eight_stands_out_as_the_paper_computes_it() -> None:
    """std of (1, 0 x 7) is sqrt(7)/8: the success gets sqrt(7), each failure -1/sqrt(7)."""
    values = normalised_advantages(as_rewards([1.0] + [0.0] * 7))
    np.testing.assert_allclose(values, [np.sqrt(7)] + [-1 / np.sqrt(7)] * 7, rtol=1e-5)


def test_crumbs_of_partial_credit_do_not_become_a_full_sigma() -> None:
    assert not normalised_advantages(as_rewards([0.01, 0.05] * 4)).any()


@pytest.mark.parametrize("bad", [[], [float("nan"), 1.0], [float("inf")]])
def test_rewards_that_are_no_numbers_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite rewards"):
        as_rewards(bad)


def test_of_two_answers_with_the_same_reward_the_one_that_cost_less_is_preferred() -> None:
    ref = TaskRef("slogans", "own", 1, 0, "g")
    rollouts = (Rollout("natural", "stop", 1.0), Rollout("! ! !", "stop", 1.0))
    group = Group(Question(ref, "?", "0" * 64), rollouts)
    (plain,) = assemble_batch([group], (), 1, 0, np.random.default_rng(0), normalised_advantages)
    (priced,) = assemble_batch(
        [group], (), 1, 0, np.random.default_rng(0), normalised_advantages, penalties={ref: (0.1, 0.6)}
    )
    assert plain.advantages == (0.0, 0.0)
    assert priced.advantages == pytest.approx((1.0, -1.0), abs=1e-4)
    assert priced.rewards == (1.0, 1.0), "what is shown stays the reward"
