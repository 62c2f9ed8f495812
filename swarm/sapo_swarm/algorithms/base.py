"""What an algorithm is."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sapo_swarm.config import RunConfig
from sapo_swarm.errors import UnknownName

if TYPE_CHECKING:
    from sapo_backends.base import PolicyUpdate
    from sapo_swarm.sapo.training_batch import AdvantageRule


PolicyRule = Callable[[RunConfig, float], "PolicyUpdate"]
"""(settings, learning rate) -> the update, which every engine computes in the same way."""

TINY = 50_000_000
"""Below this many parameters a model is trained in full with a large step."""
LARGE_BATCH = 32
"""Number of groups with which that step was measured."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """advantages: (G,) rewards -> (G,) advantages. policy: the update's settings."""

    advantages: AdvantageRule
    policy: PolicyRule


def local_groups(config: RunConfig, parameters: int) -> int:
    """I: the setting, or if neither I nor J is set, 32 for a tiny model and the paper's 8 for others.

    Of a tiny model's 8 groups two or three have a non-zero advantage, and an optimizer with normalised steps amplifies their
    noise: on starter-1m 150 rounds of 8 groups moved held-out pass@1 by no measurable amount, of 32 by several points.
    """
    if config.local_groups or config.external_groups:
        return config.local_groups
    return LARGE_BATCH if parameters < TINY else 8


def groups_of_a_source(parameters: int) -> int:
    """Most external groups of one node in a batch: three for a tiny model, see docs/decisions/0012-tiny-in-a-swarm.md."""
    return 3 if parameters < TINY else 1


def learning_rate(config: RunConfig, method: str, parameters: int, groups: int = LARGE_BATCH) -> float:
    """The setting, or if it is 0 the default of "full" or "lora" training for a model of this size. groups: I + J.

    Tiny models: 2e-4 at a million parameters, falling with the square root of the size (measured with 32 groups on
    starter-1m; 1e-3 destroyed it), and proportional to the batch. 1e-6 for larger models trained in full (the SAPO code's
    later value). An adapter's: docs/decisions/0048-adapter-rate.md.
    """
    if config.learning_rate > 0:
        return config.learning_rate
    if parameters < TINY:
        return min(3e-4, 2e-4 * math.sqrt(1e6 / parameters) * groups / LARGE_BATCH)
    return 1e-4 if method == "lora" else 1e-6


EXAMPLES_RATES = ((200_000_000, 1e-3), (700_000_000, 5e-4))
"""Adapters: (up to this many parameters, step of the examples phase); for larger models LARGE_EXAMPLES_RATE."""
LARGE_EXAMPLES_RATE = 2e-4


AFTER_EXAMPLES = 0.3
"""Factor on the default learning rate for practice after an examples phase: most answers are right then, and the few wrong
ones of a batch, with normalised advantages, would pull at everything learned. Measured: decision 52."""


def examples_rate(method: str, parameters: int) -> float:
    """The Adam step of the examples phase. Imitation of right answers tolerates larger steps than a policy gradient: the
    direction is the same in every batch. Measured: docs/decisions/0052-examples-first.md."""
    if method == "lora":
        return next((rate for limit, rate in EXAMPLES_RATES if parameters <= limit), LARGE_EXAMPLES_RATE)
    return min(1e-3, 5e-4 * math.sqrt(5e6 / parameters)) if parameters < TINY else 1e-5


def rate_share(config: RunConfig, round_number: int) -> float:
    """The share of the learning rate in a round of practice (0, 1, …): 1, or in the second half of a planned run falling
    linearly to final_rate at the last round.

    A constant rate leaves the noise of the last steps in the weights: see docs/decisions/0011-falling-rate.md.
    """
    last = config.rounds - 1
    if last < 1 or round_number <= last / 2:
        return 1.0
    return 1.0 - (1.0 - config.final_rate) * min(1.0, round_number / last * 2.0 - 1.0)


# Algorithms by name; a module is imported when its name is chosen.

ALGORITHMS: dict[str, str] = {
    "grpo": "sapo_swarm.algorithms.grpo",
    "dr_grpo": "sapo_swarm.algorithms.dr_grpo",
    "rloo": "sapo_swarm.algorithms.rloo",
    "gspo": "sapo_swarm.algorithms.gspo",
    "maxrl": "sapo_swarm.algorithms.maxrl",
}
"""Name -> module with an ALGORITHM."""


def load_algorithm(name: str) -> Algorithm:
    """Raises UnknownName, which names the nearest."""
    module = ALGORITHMS.get(name)
    if module is None:
        raise UnknownName("algorithm", name, ALGORITHMS)
    algorithm: Algorithm = importlib.import_module(module).ALGORITHM
    return algorithm
