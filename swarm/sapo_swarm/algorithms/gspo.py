"""Group Sequence Policy Optimization. arXiv 2507.18071, sections 4.1 and 5.1.

The importance ratio belongs to the completion (geometric mean of its tokens' ratios) and so does the clip, whose range
is two orders of magnitude smaller than a token's: 3e-4 below and 4e-4 above.
"""

from __future__ import annotations

from sapo_backends.base import PolicyUpdate
from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.training_batch import normalised_advantages


def policy(config: RunConfig, learning_rate: float) -> PolicyUpdate:
    """The update's settings, which every engine applies in the same way."""
    return PolicyUpdate(
        learning_rate=learning_rate,
        clip_low=3e-4,
        clip_high=4e-4,
        ratio_level="sequence",
        aggregation="sequence_mean",
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
    )


ALGORITHM = Algorithm(normalised_advantages, policy)
