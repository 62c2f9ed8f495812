"""Adaptive group size: against counting, and against every other way to give out the attempts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.sapo.adaptive_sampling import LEAST, MOST, SuccessPosterior, chance_nonzero, group_sizes

POSTERIORS = st.builds(SuccessPosterior, st.floats(0, 250), st.floats(0, 250))


def test_the_chance_of_unequal_rewards_is_that_of_groups_sampled_from_the_posterior() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(1 + 3, 1 + 12, 200_000)
    won = rng.binomial(8, p)
    assert chance_nonzero(SuccessPosterior(3, 12), 8) == pytest.approx(np.mean((won > 0) & (won < 8)), abs=0.005)


@given(st.lists(POSTERIORS, min_size=1, max_size=12), st.integers(2, 16))
def test_the_budget_is_kept_and_every_question_is_a_group(posteriors: list[SuccessPosterior], usual: int) -> None:
    sizes = group_sizes(posteriors, usual)
    assert sum(sizes) == usual * len(posteriors)
    assert all(LEAST <= size <= MOST * usual for size in sizes)


@given(st.lists(POSTERIORS, min_size=3, max_size=3))
def test_no_other_split_expects_more_groups_with_a_gradient(posteriors: list[SuccessPosterior]) -> None:
    def expected(sizes: tuple[int, ...]) -> float:
        return sum(chance_nonzero(p, n) for p, n in zip(posteriors, sizes, strict=True))

    splits = [s for s in itertools.product(range(2, 9), repeat=3) if sum(s) == 12]
    assert expected(tuple(group_sizes(posteriors, 4))) >= max(map(expected, splits)) - 1e-9


def test_hard_questions_get_more_and_hopeless_and_easy_ones_fewer() -> None:
    hopeless, hard, half, easy = group_sizes([SuccessPosterior(w, 250 - w) for w in (0, 25, 125, 249)], 8)
    assert hard > 8 > half > max(hopeless, easy)


def test_without_evidence_all_are_alike() -> None:
    assert group_sizes([SuccessPosterior()] * 5, 8) == [8] * 5
