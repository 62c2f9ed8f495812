"""Advantages: invariants that hold for every group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.sapo.advantage import (
    MIN_SPREAD,
    AdvantageRule,
    as_rewards,
    centred,
    leave_one_out,
    normalised,
    spread,
)

RULES = (normalised, centred, leave_one_out)
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
    assert bool(rule(rewards).any()) == (spread(rewards) >= MIN_SPREAD)


@given(rewards=groups, shift=st.floats(-1, 1), scale=st.floats(1, 5))
def test_normalised_advantages_ignore_shift_and_scale_of_rewards(
    rewards: np.ndarray, shift: float, scale: float
) -> None:
    if spread(rewards) >= MIN_SPREAD:
        np.testing.assert_allclose(normalised(rewards * scale + shift), normalised(rewards), atol=1e-4)


@given(rewards=groups)
def test_normalised_advantages_have_unit_variance(rewards: np.ndarray) -> None:
    if spread(rewards) >= MIN_SPREAD:
        assert normalised(rewards).std() == pytest.approx(1.0, abs=1e-4)


@given(rewards=groups)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(rewards: np.ndarray) -> None:
    if spread(rewards) >= MIN_SPREAD:
        expected = [r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)]
        np.testing.assert_allclose(leave_one_out(rewards), expected, atol=1e-12)


def test_a_single_success_among_eight_stands_out_as_the_paper_computes_it() -> None:
    """std of (1, 0 x 7) is sqrt(7)/8: the success gets sqrt(7), each failure -1/sqrt(7)."""
    values = normalised(as_rewards([1.0] + [0.0] * 7))
    np.testing.assert_allclose(values, [np.sqrt(7)] + [-1 / np.sqrt(7)] * 7, rtol=1e-5)


def test_crumbs_of_partial_credit_do_not_become_a_full_sigma() -> None:
    assert not normalised(as_rewards([0.01, 0.05] * 4)).any()


@pytest.mark.parametrize("bad", [[], [float("nan"), 1.0], [float("inf")]])
def test_rewards_that_are_no_numbers_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite rewards"):
        as_rewards(bad)
