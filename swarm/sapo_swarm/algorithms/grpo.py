"""GRPO as the SAPO experiments use it: no KL, DAPO's asymmetric clip, mean over the tokens of the minibatch.

DeepSeekMath, arXiv 2402.03300 (group-normalised advantage); DAPO, arXiv 2503.14476, sections 3.1 and 3.3 (clip
0.2/0.28, token-level loss). With one epoch and one minibatch the ratio is 1 and the clip never acts (see the package).
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
        clip_low=0.2,
        clip_high=0.28,
        ratio_level="token",
        aggregation="token_mean",
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
    )


ALGORITHM = Algorithm(normalised_advantages, policy)
