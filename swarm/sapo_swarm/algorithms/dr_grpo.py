"""Dr. GRPO: GRPO without its two biases. arXiv 2503.20783, section 3.2.

The advantage is not divided by the group's deviation (no extra weight for questions that are almost always or almost
never solved), and the loss is divided by a constant length (no smaller penalty for longer wrong completions).
"""

from __future__ import annotations

from sapo_backends.base import PolicyUpdate
from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.training_batch import centred_advantages


def policy(config: RunConfig, learning_rate: float) -> PolicyUpdate:
    """The update's settings, which every engine applies in the same way."""
    return PolicyUpdate(
        learning_rate=learning_rate,
        clip_low=0.2,
        clip_high=0.2,
        ratio_level="token",
        aggregation="constant",
        constant_length=config.max_new_tokens,
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
    )


ALGORITHM = Algorithm(centred_advantages, policy)
