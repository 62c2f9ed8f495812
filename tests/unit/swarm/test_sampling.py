"""SampleSelf, SampleExternal and assemble: counts, filters, caps and uniformity."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.errors import UnknownName
from sapo_swarm.sapo.training_batch import (
    STRATEGIES,
    assemble_batch,
    has_advantage,
    normalised_advantages,
    questions_to_sample,
    sample_external,
    sample_self,
)
from sapo_swarm.types import Group, Question, Rollout, TaskRef

CHI_SQUARE_999 = {6: 22.46, 14: 36.12}
"""99.9 % quantiles by degrees of freedom."""


def group(number: int, rewards: tuple[float, ...] = (1.0, 0.0), node: str = "") -> Group:
    prompt = f"question {number}"
    question = Question(TaskRef("bf", "paper", number), prompt, hashlib.sha256(prompt.encode()).hexdigest())
    rollouts = tuple(Rollout("<answer>1</answer>", "stop", reward, 3) for reward in rewards)
    return Group(question, rollouts, "external" if node else "own", node)


def numbers(groups: list[Group] | tuple[Group, ...]) -> list[int]:
    return [g.question.ref.seed for g in groups]


rewards = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=4).map(tuple)
pools = st.lists(st.tuples(rewards, st.sampled_from(["a", "b", "c", "d"])), max_size=20).map(
    lambda drawn: [group(i, r, node) for i, (r, node) in enumerate(drawn)]
)


@given(pool=pools, wanted=st.integers(0, 8), seed=st.integers(0, 99), sampling=st.sampled_from(sorted(STRATEGIES)))
def test_external_groups_are_distinct_at_most_as_many_as_wanted_and_one_a_source(
    pool: list[Group], wanted: int, seed: int, sampling: str
) -> None:
    chosen = sample_external(pool, wanted, np.random.default_rng(seed), sampling)
    assert len(chosen) <= wanted
    assert len(set(numbers(chosen))) == len(chosen)
    assert max(Counter(g.node for g in chosen).values(), default=0) <= 1
    if sampling in {"uniform_nonzero", "reward_guided"}:
        assert all(has_advantage(g) for g in chosen)
        sources = {g.node for g in pool if has_advantage(g)}
        assert len(chosen) == min(wanted, len(sources))
    if sampling == "none":
        assert chosen == []


@given(pool=pools, wanted=st.integers(0, 8), seed=st.integers(0, 99))
def test_the_same_generator_state_draws_the_same_groups(pool: list[Group], wanted: int, seed: int) -> None:
    first, second = (sample_external(pool, wanted, np.random.default_rng(seed)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("sampling", ["uniform", "uniform_nonzero"])
def test_external_draws_are_uniform_over_what_survives(sampling: str) -> None:
    """Chi-square over 15 groups, two a draw, at the 99.9 % level."""
    pool = [group(i, node=f"n{i}") for i in range(15)]
    random = np.random.default_rng(4)
    counts = np.zeros(15)
    for _ in range(3000):
        for number in numbers(sample_external(pool, 2, random, sampling)):
            counts[number] += 1
    expected = counts.sum() / 15
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_999[14]


def test_own_draws_are_uniform_and_keep_their_order() -> None:
    own = [group(i) for i in range(7)]
    random = np.random.default_rng(5)
    counts = np.zeros(7)
    for _ in range(2000):
        drawn = numbers(sample_self(own, 3, random))
        assert drawn == sorted(set(drawn))
        counts[drawn] += 1
    expected = counts.sum() / 7
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_999[6]


def test_reward_guided_prefers_half_solved_questions() -> None:
    half = group(0, (1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0), "a")
    rare = group(1, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), "b")
    random = np.random.default_rng(1)
    first = Counter(numbers(sample_external([half, rare], 1, random, "reward_guided"))[0] for _ in range(2000))
    assert first[0] / 2000 == pytest.approx(0.25 / (0.25 + 7 / 64), abs=0.04)


def test_an_unknown_strategy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'uniform_nonzero'"):
        sample_external([], 1, np.random.default_rng(0), "uniform_non_zero")


def batch(local: int, pool: list[Group], i: int, j: int) -> tuple[list[Group], list[Group]]:
    """The local and the external groups of a batch."""
    return parted(
        assemble_batch([group(n) for n in range(local)], pool, i, j, np.random.default_rng(0), normalised_advantages)
    )


def parted(made: list[Group]) -> tuple[list[Group], list[Group]]:
    local, external = [g for g in made if not g.external], [g for g in made if g.external]
    assert made == local + external
    return local, external


def test_a_batch_holds_i_own_and_j_external_groups_with_advantages() -> None:
    local, external = batch(4, [group(100 + n, node=f"n{n}") for n in range(9)], 4, 4)
    assert numbers(local) == [0, 1, 2, 3]
    assert len(external) == 4
    assert all(g.advantages == pytest.approx((1.0, -1.0), abs=1e-4) for g in local + external)


def test_a_node_without_a_number_of_own_groups_asks_for_all_that_is_not_on_offer() -> None:
    assert [questions_to_sample(0, 6, available) for available in (0, 2, 6)] == [6, 4, 0]


@given(st.integers(1, 32), st.integers(0, 32), st.integers(0, 40))
def test_a_node_asks_more_of_its_own_for_what_is_not_on_offer_but_at_most_twice_as_many(
    own: int, external: int, available: int
) -> None:
    asked = questions_to_sample(own, external, available)
    assert own <= asked <= 2 * own
    if external <= own:
        assert asked + min(available, external) == own + external, "the paper's ratios are always full"
    if available >= min(own, external):
        assert asked == own


def test_a_starved_pool_is_filled_with_spare_own_groups() -> None:
    pool = [group(100, (0.0, 0.0), "a"), group(101, (1.0, 0.0), "b")]
    local, external = batch(8, pool, 4, 4)
    assert numbers(external) == [101]
    assert len(local) == 7
    assert len(set(numbers(local))) == 7


def test_a_batch_that_cannot_be_filled_is_smaller() -> None:
    local, external = batch(4, [], 4, 4)
    assert (numbers(local), external) == ([0, 1, 2, 3], [])


def test_own_groups_without_advantage_stay_in_the_batch() -> None:
    own = [group(0, (0.0, 0.0)), group(1, (1.0, 0.0))]
    made = assemble_batch(own, [], 2, 0, np.random.default_rng(0), normalised_advantages)
    assert numbers(made) == [0, 1]
    assert made[0].advantages == (0.0, 0.0)
    assert any(made[1].advantages)


def test_external_groups_may_be_the_larger_part_of_a_batch() -> None:
    local, external = batch(8, [group(100 + n, node=f"n{n}") for n in range(9)], 2, 8)
    assert (len(local), len(external)) == (2, 8)


@given(pools, st.integers(0, 6), st.integers(0, 6), st.integers(0, 12), st.integers(0, 50))
def test_a_batch_never_exceeds_its_size_nor_repeats_a_group(
    pool: list[Group], i: int, j: int, own: int, seed: int
) -> None:
    mine = [group(1000 + n) for n in range(own)]
    made = assemble_batch(mine, pool, i, j, np.random.default_rng(seed), normalised_advantages)
    assert len(made) <= i + j
    assert len(set(numbers(made))) == len(made)
    assert len(made) == min(i + j, own + len(parted(made)[1]))
