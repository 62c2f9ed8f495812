"""REINFORCE leave-one-out. arXiv 2402.14740, section 2.2 (after Kool et al. 2019).

Each completion's baseline is the mean reward of the others. A completion is one action: its log-probability is the sum
over its tokens, so the loss sums tokens (the constant only scales it, and Adam undoes the scale), and the importance
ratio is the completion's: one number for all its tokens, their geometric mean, so that one clip range fits every length.
"""

from __future__ import annotations

from sapo_backends.base import PolicyUpdate
from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.training_batch import leave_one_out


def policy(config: RunConfig, learning_rate: float) -> PolicyUpdate:
    """The update's settings, which every engine applies in the same way."""
    return PolicyUpdate(
        learning_rate=learning_rate,
        clip_low=0.2,
        clip_high=0.28,
        ratio_level="sequence",
        aggregation="constant",
        constant_length=config.max_new_tokens,
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
    )


ALGORITHM = Algorithm(leave_one_out, policy)
