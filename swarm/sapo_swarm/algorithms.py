"""Policy-gradient algorithms by name: how a group's rewards become advantages, and which update uses them.

With one epoch and one minibatch (the defaults) every batch is used for one step, by the policy that generated its local
part: the importance ratio is 1 and the clip never acts, whichever algorithm is chosen. The algorithms then differ in
their advantages and in how token losses are averaged. External completions have no old log-probability, so their ratio is
1 too: of external groups trained on their positive advantages alone (external_advantages = "positive") the update is
advantage-weighted likelihood. Ratio and clip become real with epochs or minibatches above 1.

Nothing here is called "sapo": that is the rule for what goes into the batch (sapo_swarm.sapo), and the name of another
paper's loss (Soft Adaptive Policy Optimization, which this project does not use).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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
    return 3e-4 if method == "lora" else 1e-6


EXAMPLES_RATES = ((200_000_000, 1e-3), (700_000_000, 5e-4))
"""Adapters: (up to this many parameters, step of the examples phase); for larger models LARGE_EXAMPLES_RATE."""
LARGE_EXAMPLES_RATE = 2e-4


def examples_rate(method: str, parameters: int) -> float:
    """The Adam step of the examples phase. Imitation of right answers tolerates larger steps than a policy gradient: the
    direction is the same in every batch. Measured: docs/decisions/0052-examples-first.md."""
    if method == "lora":
        return next((rate for limit, rate in EXAMPLES_RATES if parameters <= limit), LARGE_EXAMPLES_RATE)
    return min(1e-3, 5e-4 * math.sqrt(5e6 / parameters)) if parameters < TINY else 1e-5


# Algorithms by name. Adding one is a line in _UPDATES, and its advantages in sapo.training_batch where they are new.

_TOKENS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "ratio_level": "token", "aggregation": "token_mean"}
"""DAPO's asymmetric clip and mean over the tokens of the minibatch (arXiv 2503.14476, sections 3.1 and 3.3); no KL."""
_UPDATES: dict[str, dict[str, Any]] = {
    # GRPO as the SAPO experiments use it: DeepSeekMath, arXiv 2402.03300 (group-normalised advantage).
    "grpo": _TOKENS,
    # Dr. GRPO, arXiv 2503.20783, section 3.2: the advantage is not divided by the group's deviation (no extra weight for
    # questions that are almost always or almost never solved), and the loss is divided by a constant length (no smaller
    # penalty for longer wrong completions).
    "dr_grpo": {**_TOKENS, "clip_high": 0.2, "aggregation": "constant"},
    # REINFORCE leave-one-out, arXiv 2402.14740, section 2.2 (after Kool et al. 2019): each completion's baseline is the mean
    # reward of the others. A completion is one action: its log-probability is the sum over its tokens, so the loss sums
    # tokens (the constant only scales it, and Adam undoes the scale), and the importance ratio is the completion's: one
    # number for all its tokens, their geometric mean, so that one clip range fits every length.
    "rloo": {**_TOKENS, "ratio_level": "sequence", "aggregation": "constant"},
    # Group Sequence Policy Optimization, arXiv 2507.18071, sections 4.1 and 5.1: ratio and clip belong to the completion;
    # the clip's range is two orders of magnitude smaller than a token's.
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "ratio_level": "sequence", "aggregation": "sequence_mean"},
    # Maximum likelihood reinforcement learning, arXiv 2602.02710: with K successes in a group of G each gets G / K - 1 and
    # each failure -1, so a question that is solved once in eight attempts weighs 7 where GRPO gives 2.6. In expectation a
    # group's gradient is that of the sum of pass@k / k for k = 1 ... G - 1, which for large G is the gradient of the
    # log-likelihood of a correct answer, log p; plain REINFORCE follows pass@1 alone. Everything else is GRPO's.
    "maxrl": _TOKENS,
    # Policy optimization with down-sampling, arXiv 2504.13818: only the half of a group with the most different rewards is
    # trained on, which halves the tokens of an update. Everything else is GRPO's.
    "pods": _TOKENS,
}
"""Name -> the settings of its update."""
ALGORITHMS: tuple[str, ...] = tuple(_UPDATES)


def load_algorithm(name: str) -> Algorithm:
    """Raises UnknownName, which names the nearest."""
    from sapo_swarm.sapo import training_batch as rules

    if name not in _UPDATES:
        raise UnknownName("algorithm", name, _UPDATES)
    advantages = {
        "dr_grpo": rules.centred_advantages,
        "rloo": rules.leave_one_out,
        "maxrl": rules.mean_normalised,
        "pods": rules.down_sampled,
    }
    return Algorithm(advantages.get(name, rules.normalised_advantages), partial(_policy, _UPDATES[name]))


def _policy(update: dict[str, Any], config: RunConfig, learning_rate: float) -> PolicyUpdate:
    from sapo_backends.base import PolicyUpdate

    constant: dict[str, Any] = {"constant_length": config.max_new_tokens} if update["aggregation"] == "constant" else {}
    return PolicyUpdate(
        learning_rate=learning_rate,
        temperature=config.temperature,
        epochs=config.epochs,
        minibatches=config.minibatches,
        **update,
        **constant,
    )
