"""Each algorithm is what its paper says, and names are found or explained."""

from __future__ import annotations

import numpy as np
import pytest

from sapo_backends.base import TrainSample
from sapo_backends.reference import sample_term
from sapo_swarm.algorithms import ALGORITHMS, learning_rate, load_algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.errors import UnknownName
from sapo_swarm.sapo.training_batch import as_rewards

CONFIG = RunConfig(max_new_tokens=64, temperature=0.7, epochs=2, minibatches=4)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_settings_of_the_run_reach_the_update(name: str) -> None:
    policy = load_algorithm(name).policy(CONFIG, 1e-3)
    assert (policy.learning_rate, policy.temperature) == (1e-3, 0.7)
    assert (policy.epochs, policy.minibatches) == (2, 4)


def test_grpo_clips_asymmetrically_and_means_over_tokens() -> None:
    policy = load_algorithm("grpo").policy(CONFIG, 1e-3)
    assert (policy.clip_low, policy.clip_high) == (0.2, 0.28)
    assert (policy.ratio_level, policy.aggregation) == ("token", "token_mean")


def test_dr_grpo_divides_neither_by_the_deviation_nor_by_the_length() -> None:
    chosen = load_algorithm("dr_grpo")
    policy = chosen.policy(CONFIG, 1e-3)
    assert (policy.aggregation, policy.constant_length) == ("constant", 64)
    np.testing.assert_allclose(chosen.advantages(as_rewards([1, 0, 0, 0])), [0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_each_completion_with_the_others() -> None:
    chosen = load_algorithm("rloo")
    np.testing.assert_allclose(chosen.advantages(as_rewards([1, 0, 0, 0])), [1, -1 / 3, -1 / 3, -1 / 3])
    policy = chosen.policy(CONFIG, 1e-3)
    assert (policy.ratio_level, policy.aggregation) == ("sequence", "constant")


def test_rloo_treats_a_completion_as_one_action() -> None:
    """One ratio for all its tokens, and a gradient that is the sum over them: twice the tokens, twice the gradient."""
    policy = load_algorithm("rloo").policy(CONFIG, 1e-3)
    old, now = (-1.0, -2.0, -3.0), np.array([-1.3, -2.0, -2.4])
    term = sample_term(TrainSample((1,), (2, 3, 4), 1.0, old_logprobs=old), now, policy)
    np.testing.assert_allclose(term.ratio, np.exp(np.mean(now - np.array(old))))
    np.testing.assert_allclose(term.grad, term.ratio)


def test_maxrl_divides_by_the_mean_and_is_grpo_otherwise() -> None:
    chosen = load_algorithm("maxrl")
    np.testing.assert_allclose(chosen.advantages(as_rewards([1] + [0] * 7)), [7] + [-1] * 7)
    np.testing.assert_allclose(chosen.advantages(as_rewards([1, 1, 0, 0])), [1, 1, -1, -1])
    assert chosen.policy(CONFIG, 1e-3) == load_algorithm("grpo").policy(CONFIG, 1e-3)


def test_pods_trains_on_the_half_with_the_most_different_rewards() -> None:
    chosen = load_algorithm("pods")
    np.testing.assert_allclose(
        chosen.advantages(as_rewards([0, 1, 0, 0, 0, 0, 1, 0])), [-1, 1, -1, 0, 0, 0, 1, 0], atol=1e-3
    )
    once = chosen.advantages(as_rewards([0, 0, 0, 0, 0, 1, 0, 0]))
    np.testing.assert_allclose(once, np.array([-1, -1, -1, 0, 0, 3, 0, 0]) / np.sqrt(3), atol=1e-3)
    ends = chosen.advantages(as_rewards([0.1, 0.9, 0.5, 0.45, 0.0, 1.0, 0.4, 0.5]))
    assert [place for place, value in enumerate(ends) if value] == [0, 1, 4, 5]
    assert not chosen.advantages(as_rewards([1] * 8)).any()
    assert chosen.policy(CONFIG, 1e-3) == load_algorithm("grpo").policy(CONFIG, 1e-3)


def test_gspo_has_a_ratio_a_completion_and_a_small_clip() -> None:
    policy = load_algorithm("gspo").policy(CONFIG, 1e-3)
    assert (policy.ratio_level, policy.aggregation) == ("sequence", "sequence_mean")
    assert (policy.clip_low, policy.clip_high) == (3e-4, 4e-4)


@pytest.mark.parametrize(("typed", "meant"), [("drgrpo", "dr_grpo"), ("GSPO".lower() + "o", "gspo"), ("rlo", "rloo")])
def test_an_unknown_algorithm_names_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{meant}'"):
        load_algorithm(typed)


def test_no_algorithm_is_called_sapo() -> None:
    """That name is the batch rule's, and another paper's loss."""
    assert "sapo" not in ALGORITHMS
    with pytest.raises(UnknownName):
        load_algorithm("sapo")


def test_the_step_is_the_setting_or_the_methods_default() -> None:
    assert learning_rate(RunConfig(learning_rate=5e-5), "full", 10) == 5e-5
    assert learning_rate(RunConfig(), "full", 4_000_000) == pytest.approx(1e-4)
    assert learning_rate(RunConfig(), "full", 1) == 3e-4
    assert learning_rate(RunConfig(), "full", 4_000_000, 16) == pytest.approx(5e-5), "half a batch, half a step"
    assert learning_rate(RunConfig(), "full", 1_000_000, 256) == 3e-4
    assert [learning_rate(RunConfig(), method, 500_000_000) for method in ("full", "lora")] == [1e-6, 3e-4]
