"""T <- SampleSelf(I) and SampleExternal(J): the training batch, with advantages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sapo_swarm.sapo.advantage import AdvantageRule, as_rewards
from sapo_swarm.sapo.sample_external import NOTHING, Seen, sample_external
from sapo_swarm.types import Group


def sample_self(groups: Sequence[Group], wanted: int, random: np.random.Generator) -> list[Group]:
    """Up to `wanted` local groups, uniformly without replacement, in their order.

    Unfiltered as in the paper: groups whose rewards are all equal keep their place (and their share of the loss's
    denominator). With as many groups as wanted `random` is not advanced.
    """
    if wanted < 0:
        raise ValueError(f"Cannot sample {wanted} groups.")
    if len(groups) <= wanted:
        return list(groups)
    chosen = sorted(random.choice(len(groups), size=wanted, replace=False).tolist())
    return [groups[i] for i in chosen]


def questions_to_sample(local: int, external: int, available: int) -> int:
    """Questions that a node samples for a batch of I = local and J = external: I, and one more for each external group that
    is not available, but at most I of these. With I >= J, or I = 0, the batch is always full; else it is as large as the
    pool allows."""
    return local + max(0, min(local or external, external) - available)


def with_advantages(group: Group, rule: AdvantageRule) -> Group:
    """The group with the advantage of each completion. Raises ValueError on rewards that are not finite."""
    values = rule(as_rewards(group.rewards))
    return msgspec.structs.replace(group, advantages=tuple(float(value) for value in values))


def assemble(
    local: Sequence[Group],
    pool: Sequence[Group],
    local_wanted: int,
    external_wanted: int,
    random: np.random.Generator,
    rule: AdvantageRule,
    sampling: str = "uniform_nonzero",
    per_source: int | None = 1,
    seen: Seen = NOTHING,
) -> list[Group]:
    """What one update trains on: I local and then J external groups, with their advantages.

    seen: what the node has trained on, for the strategy `novelty`. Where fewer than J survive, spare local groups,
    unfiltered like the rest, fill the batch up to I + J as far as the node generated any. J may exceed I: what limits a
    hostile source is per_source, the log-probability floor and the tripwire, not a share of the batch (the measured
    default for larger models is 2/8).
    Raises UnknownName, ValueError.
    """
    total = local_wanted + external_wanted
    external = sample_external(pool, external_wanted, random, sampling, per_source, seen)
    chosen = sample_self(local, local_wanted, random)
    used = {id(group) for group in chosen}
    spare = [group for group in local if id(group) not in used]
    chosen += sample_self(spare, total - len(chosen) - len(external), random)
    return [with_advantages(group, rule) for group in [*chosen, *external]]
