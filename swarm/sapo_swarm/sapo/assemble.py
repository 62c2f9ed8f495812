"""T <- SampleSelf(I) and SampleExternal(J): the training batch, with advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update trains on: local groups first, then external ones; advantages are filled in.

    local_wanted, external_wanted: I and J. pool: external groups that were offered.
    """

    local: tuple[Group, ...]
    external: tuple[Group, ...]
    local_wanted: int
    external_wanted: int
    pool: int

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups of the batch, in the order of training."""
        return self.local + self.external

    @property
    def pool_starved(self) -> int:
        """External groups that were wanted and not found; local groups took their place where there were any."""
        return self.external_wanted - len(self.external)

    @property
    def short(self) -> int:
        """Groups that the batch lacks of I + J: so many more local groups would fill it."""
        return self.local_wanted + self.external_wanted - len(self.groups)

    @property
    def external_share(self) -> float:
        """J_actual / (I + J) of this batch; 0 for an empty one."""
        return len(self.external) / len(self.groups) if self.groups else 0.0

    @property
    def nonzero_groups(self) -> int:
        """Groups with a policy gradient."""
        return sum(any(group.advantages) for group in self.groups)

    @property
    def reward_local(self) -> float | None:
        """Mean reward of the batch's local groups. The node reports all that it generated; this is of those trained on."""
        return mean_reward(self.local)

    @property
    def reward_external(self) -> float | None:
        """Mean reward of the external groups; None without any."""
        return mean_reward(self.external)

    @property
    def reward_batch(self) -> float | None:
        """Mean reward of all groups; None for an empty batch."""
        return mean_reward(self.groups)


def questions_to_sample(local: int, external: int, available: int) -> int:
    """Questions that a node samples for a batch of I = local and J = external: I, and one more for each external group that
    is not available, but at most I of these. With I >= J, or I = 0, the batch is always full; else it is as large as the
    pool allows."""
    return local + max(0, min(local or external, external) - available)


def mean_reward(groups: Sequence[Group]) -> float | None:
    """Mean over all rollouts of the groups; None without any."""
    rewards = [reward for group in groups for reward in group.rewards]
    return float(np.mean(rewards)) if rewards else None


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
) -> Batch:
    """A batch of I local and J external groups.

    seen: what the node has trained on, for the strategy `novelty`. Where fewer than J survive, spare local groups,
    unfiltered like the rest, fill the batch up to I + J as far as the node generated any. J may exceed I: what limits a
    hostile source is per_source, the log-probability floor and the tripwire, not a share of the batch (the measured
    default for larger models is 2/8).
    Raises UnknownStrategy, ValueError.
    """
    total = local_wanted + external_wanted
    external = sample_external(pool, external_wanted, random, sampling, per_source, seen)
    chosen = sample_self(local, local_wanted, random)
    used = {id(group) for group in chosen}
    spare = [group for group in local if id(group) not in used]
    chosen += sample_self(spare, total - len(chosen) - len(external), random)
    return Batch(
        local=tuple(with_advantages(group, rule) for group in chosen),
        external=tuple(with_advantages(group, rule) for group in external),
        local_wanted=local_wanted,
        external_wanted=external_wanted,
        pool=len(pool),
    )
