"""Maximum likelihood reinforcement learning. arXiv 2602.02710.

The advantage is divided by the group's mean reward, not by its deviation: (r - mean) / mean. With K successes in a group
of G each gets G / K - 1 and each failure -1, so a question that is solved once in eight attempts weighs 7 where GRPO gives
2.6. In expectation a group's gradient is that of the sum of pass@k / k for k = 1 ... G - 1, which for large G is the
gradient of the log-likelihood of a correct answer, log p; plain REINFORCE follows pass@1 alone.

Everything else is GRPO's: clip 0.2/0.28, mean over the tokens of the minibatch, no KL.
"""

from __future__ import annotations

from sapo_backends.base import PolicyUpdate
from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.training_batch import mean_normalised


def policy(config: RunConfig, learning_rate: float) -> PolicyUpdate:
    """The update's settings, which every engine applies in the same way."""
    return PolicyUpdate(
        learning_rate=learning_rate,
        clip_low=0.2,
        clip_high=0.28,
        ratio_level="token",
        aggregation="token_mean",
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
    )


ALGORITHM = Algorithm(mean_normalised, policy)
