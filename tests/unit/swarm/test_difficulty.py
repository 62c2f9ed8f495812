"""Difficulty-adaptive sampling: posteriors against closed forms, and which questions a round then holds."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.config import RunConfig
from sapo_swarm.node.round_phases import candidate_refs, task_preset_pairs
from sapo_swarm.sapo.adaptive_sampling import FADE, SuccessPosterior, sampling_weights, update_posteriors
from sapo_swarm.types import Group, Question, Rollout, TaskRef

HASH = hashlib.sha256(b"q").hexdigest()
FIRST_EIGHT = ["binary_matrix", "binary_matrix", "bf", "arc_1d", "arc_1d", "arc_1d", "binary_matrix", "binary_matrix"]
"""The tasks of node n, swarm seed 0, round 1, before there was a curriculum."""
CONFIG = RunConfig(tasks=("bf", "arc_1d", "binary_matrix"), preset="starter", curriculum="tasks")


def group(task: str, successes: int, size: int = 8, preset: str = "starter") -> Group:
    rollouts = tuple(Rollout("", "stop", float(i < successes), 1) for i in range(size))
    return Group(Question(TaskRef(task, preset, 1), "q", HASH), rollouts)


@given(st.floats(0, 500), st.floats(0, 500))
def test_the_expected_variance_is_that_of_the_beta_distribution(successes: float, failures: float) -> None:
    """E[p (1 - p)] = E[p] - E[p^2], and E[p^2] = Var[p] + E[p]^2 with the textbook's Var of Beta(a, b)."""
    a, b = 1 + successes, 1 + failures
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    found = SuccessPosterior(successes, failures)
    assert found.mean == pytest.approx(mean)
    assert found.variance == pytest.approx(mean - variance - mean**2, abs=1e-9)


def test_old_evidence_fades_so_that_the_posterior_follows_the_policy() -> None:
    posterior = SuccessPosterior()
    for _ in range(400):
        posterior = posterior.after([0.0] * 8)
    assert posterior.failures == pytest.approx(8 / FADE, rel=1e-3)
    for _ in range(64):
        posterior = posterior.after([1.0] * 8)
    assert posterior.mean > 0.8, "after two memories of successes the failures hardly count"


def test_partial_credit_counts_in_part() -> None:
    assert SuccessPosterior().after([0.25, 1.0]) == SuccessPosterior(1.25, 0.75)


def test_half_solved_tasks_are_sampled_most_and_none_is_given_up() -> None:
    posteriors: dict[str, SuccessPosterior] = {}
    for _ in range(100):
        update_posteriors(posteriors, [group("bf", 4), group("arc_1d", 0), group("binary_matrix", 8)])
    found = sampling_weights(posteriors, ["bf/starter", "arc_1d/starter", "binary_matrix/starter"])
    assert found.sum() == pytest.approx(1.0)
    assert found[0] > 0.8
    assert found[1] == pytest.approx(found[2])
    assert found[1] > 0.2 / 3


def test_without_evidence_all_tasks_are_alike() -> None:
    np.testing.assert_allclose(sampling_weights({}, ["a/b", "c/d"]), [0.5, 0.5])


def test_a_round_holds_more_questions_of_the_half_solved_task() -> None:
    posteriors = {
        "bf/starter": SuccessPosterior(100, 100),
        "arc_1d/starter": SuccessPosterior(0, 200),
        "binary_matrix/starter": SuccessPosterior(200, 0),
    }
    refs = islice(candidate_refs(CONFIG, "n", "s", 1, posteriors), 600)
    counts = Counter(ref.dataset for ref in refs)
    assert counts["bf"] > 450
    assert min(counts["arc_1d"], counts["binary_matrix"]) > 20


def test_a_uniform_run_samples_the_questions_that_it_always_did() -> None:
    """The posteriors play no part, and neither does asking for them: resumed runs go on with the same questions."""
    uniform = RunConfig(tasks=CONFIG.tasks, preset="starter")
    posteriors = {"bf/starter": SuccessPosterior(100, 100)}
    plain, ignored = ([*islice(candidate_refs(uniform, "n", "s", 1, p), 40)] for p in ({}, posteriors))
    assert plain == ignored
    assert [ref.dataset for ref in plain[:8]] == FIRST_EIGHT


def test_between_presets_is_for_a_node_alone_because_a_swarm_agrees_on_one() -> None:
    alone = RunConfig(tasks=("bf", "binary_matrix"), preset="paper", curriculum="presets", local_groups=8)
    assert [pair for pair in task_preset_pairs(alone) if pair[0] == "bf"] == [
        ("bf", p) for p in ("starter", "paper", "hard")
    ]
    shared = RunConfig(tasks=("bf",), preset="paper", curriculum="presets", local_groups=8, external_groups=2)
    assert task_preset_pairs(shared) == [("bf", "paper")]
