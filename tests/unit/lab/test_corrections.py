"""Tapered negatives and the capability baseline, against the float64 reference and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_backends.base import TrainSample
from sapo_backends.reference import sample_term
from sapo_lab.running.capability import MOST, observe, ratio, rebased
from sapo_lab.running.topr import tapered
from sapo_swarm.algorithms.registry import algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.advantage import as_rewards, normalised
from sapo_swarm.sapo.difficulty import Posterior
from sapo_swarm.types import Group, Question, Rollout, TaskRef

POLICY = algorithm("grpo").policy(RunConfig(), 1e-4)
SENDER = (-1.0, -2.0, -0.5)
LOGPROBS = st.lists(st.floats(-8, -0.01), min_size=3, max_size=3)


def sample(advantage: float) -> TrainSample:
    return TrainSample((1,), (2, 3, 4), advantage, external=True)


@given(LOGPROBS)
def test_the_gradient_is_toprs(own: list[float]) -> None:
    """Of each token A for a success and [pi / mu]_0^1 A for a failure, pi / mu the whole completion's."""
    right, wrong = tapered([sample(1.5), sample(-0.5)], [own, own], [SENDER, SENDER])
    weight = min(1.0, math.prod(math.exp(o - b) for o, b in zip(own, SENDER, strict=True)))
    np.testing.assert_allclose(sample_term(right, np.array(own), POLICY).grad, 1.5)
    np.testing.assert_allclose(sample_term(wrong, np.array(own), POLICY).grad, -0.5 * weight)


def test_of_a_small_policy_the_estimate_is_exact_where_the_ratio_is_not_truncated() -> None:
    """Over all texts that a sender writes, weighted failures give the receiver's own expected gradient: three texts of one
    token, only failures, advantage -1, and the receiver finds every text no likelier than the sender but one."""
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.2, 0.4])
    samples = [TrainSample((0,), (text,), -1.0, True) for text in range(3)]
    found = tapered(samples, [[x] for x in np.log(pi)], [[x] for x in np.log(mu)])
    grads = [sample_term(s, np.log(pi)[i : i + 1], POLICY).grad[0] for i, s in enumerate(found)]
    np.testing.assert_allclose(mu * np.array(grads), -np.minimum(pi, mu))


def test_a_failure_whose_sender_is_unknown_is_not_pushed_away() -> None:
    right, wrong = tapered([sample(1.0), sample(-1.0)], [SENDER, SENDER], [(), ()])
    assert (right.advantage, wrong.advantage) == (1.0, 0.0)


REWARDS = st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8).filter(lambda r: 0 < sum(r) < 8)


@given(REWARDS, st.floats(1 / MOST, MOST))
def test_the_baseline_is_the_groups_mean_times_the_ratio_of_the_rates(rewards: list[float], capability: float) -> None:
    values = as_rewards(rewards)
    samples = [sample(float(a)) for a in normalised(values)]
    found = [s.advantage for s in rebased(samples, rewards, capability)]
    np.testing.assert_allclose(found, (values - capability * values.mean()) / (values.std() + 1e-6), atol=1e-12)


def test_a_success_of_a_stronger_node_counts_more_and_between_equals_nothing_changes() -> None:
    strong, weak = Posterior(60, 40), Posterior(30, 70)
    assert ratio(weak, weak) == 1.0
    assert rebased([sample(1.0)], [1.0, 0.0], 1.0)[0].advantage == 1.0
    assert rebased([sample(1.0)], [1.0, 0.0], ratio(weak, strong))[0].advantage > 1.0
    assert rebased([sample(1.0)], [1.0, 0.0], ratio(strong, weak))[0].advantage < 1.0
    assert ratio(Posterior(0, 500), strong) == 1 / MOST


def test_the_rates_of_nodes_are_learnt_from_their_groups() -> None:
    rates: dict[str, Posterior] = {}
    rollouts = tuple(Rollout("", "stop", float(i < 3), 1) for i in range(8))
    group = Group(Question(TaskRef("bf", "starter", 1), "q", "0" * 64), rollouts, "external", "node-1")
    observe(rates, "node-1", [group] * 100)
    assert rates["node-1"].mean == pytest.approx(3 / 8, abs=0.01)
