"""Own-success replay: what is remembered, and how likely it comes back."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.sapo.training_batch import FORGOTTEN, ReplayEntry, age_weights, sample_replay, update_replay_entries
from sapo_swarm.types import Group, Question, Rollout, TaskRef

HASH = hashlib.sha256(b"q").hexdigest()


def group(number: int, *rewards: float) -> Group:
    rollouts = tuple(Rollout("<answer>1</answer>", "stop", reward, 3) for reward in rewards or (1.0, 0.0))
    return Group(Question(TaskRef("bf", "paper", number), "q", HASH), rollouts)


def past(*rounds: int) -> list[ReplayEntry]:
    return [ReplayEntry(number, group(number)) for number in rounds]


def numbers(groups: list[Group]) -> list[int]:
    return [g.question.ref.seed for g in groups]


def test_only_groups_with_a_success_and_a_failure_are_remembered() -> None:
    """All wrong has nothing to repeat; all correct has no advantage."""
    found = update_replay_entries([], 3, [group(1), group(2, 0.0, 0.0), group(3, 1.0, 1.0)], half_life=20)
    assert [(entry.round, entry.group.question.ref.seed) for entry in found] == [(3, 1)]


def test_a_group_is_forgotten_after_so_many_half_lives() -> None:
    assert update_replay_entries(past(0), FORGOTTEN * 5, [], half_life=5) == past(0)
    assert update_replay_entries(past(0), FORGOTTEN * 5 + 1, [], half_life=5) == []


def test_the_weight_halves_every_half_life_and_this_round_is_left_out() -> None:
    np.testing.assert_allclose(age_weights(past(10, 9, 6, 2), 10, half_life=4), [0.0, 2**-0.25, 0.5, 0.25])


def test_newer_successes_come_back_more_often_by_their_weights() -> None:
    """One a draw, so that the shares are the weights: 1/2 : 1/4 : 1/8 of ages 1, 2 and 3 at a half-life of one round."""
    random, entries = np.random.default_rng(0), past(7, 8, 9)
    counts = np.bincount([numbers(sample_replay(entries, 10, 1, 1, random))[0] - 7 for _ in range(7000)])
    np.testing.assert_allclose(counts, [1000, 2000, 4000], rtol=0.1)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 8), st.integers(1, 30), st.integers(0, 99))
def test_replay_repeats_no_group_and_never_takes_one_of_this_round(
    rounds: list[int], wanted: int, half_life: int, seed: int
) -> None:
    entries = [ReplayEntry(at, group(number)) for number, at in enumerate(rounds)]
    chosen = numbers(sample_replay(entries, 9, wanted, half_life, np.random.default_rng(seed)))
    assert len(set(chosen)) == len(chosen) == min(wanted, sum(at < 9 for at in rounds))
    assert all(rounds[number] < 9 for number in chosen)


def test_without_replay_the_random_numbers_of_a_round_are_what_they_were() -> None:
    random = np.random.default_rng(3)
    before = random.bit_generator.state
    assert sample_replay(past(1), 5, 0, 20, random) == sample_replay([], 5, 3, 20, random) == []
    assert random.bit_generator.state == before


def test_a_half_life_below_one_round_is_refused() -> None:
    with pytest.raises(ValueError, match="half-life"):
        sample_replay(past(1), 5, 1, 0, np.random.default_rng(0))
