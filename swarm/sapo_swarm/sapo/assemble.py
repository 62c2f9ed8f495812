"""T <- SampleSelf(I) and SampleExternal(J): the training batch, with advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sapo_swarm.sapo.advantage import AdvantageRule, as_rewards
from sapo_swarm.sapo.novelty import Seen
from sapo_swarm.sapo.sample_external import NOTHING, sample_external
from sapo_swarm.sapo.sample_self import sample_self
from sapo_swarm.types import Group


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update trains on: own groups first, then external ones; advantages are filled in.

    own_wanted, external_wanted: I and J. pool: external groups that were offered.
    """

    own: tuple[Group, ...]
    external: tuple[Group, ...]
    own_wanted: int
    external_wanted: int
    pool: int

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.own + self.external

    @property
    def pool_starved(self) -> int:
        """External groups that were wanted and not found; own groups took their place where there were any."""
        return self.external_wanted - len(self.external)

    @property
    def short(self) -> int:
        """Groups that the batch lacks of I + J: so many more own questions would fill it."""
        return self.own_wanted + self.external_wanted - len(self.groups)

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
        """Mean reward of the batch's own groups; the node reports all its own groups, this is of those trained on."""
        return mean_reward(self.own)

    @property
    def reward_external(self) -> float | None:
        return mean_reward(self.external)

    @property
    def reward_batch(self) -> float | None:
        return mean_reward(self.groups)


def questions_to_ask(own: int, external: int, available: int) -> int:
    """Own questions to ask for a batch of I = own and J = external: I, and one for each external group that is not on offer,
    but at most I of these. With I >= J, or I = 0, the batch is always full; else it is as large as the others make it."""
    return own + max(0, min(own or external, external) - available)


def mean_reward(groups: Sequence[Group]) -> float | None:
    """Mean over all rollouts of the groups; None without any."""
    rewards = [reward for group in groups for reward in group.rewards]
    return float(np.mean(rewards)) if rewards else None


def with_advantages(group: Group, rule: AdvantageRule) -> Group:
    values = rule(as_rewards(group.rewards))
    return msgspec.structs.replace(group, advantages=tuple(float(value) for value in values))


def assemble(
    own: Sequence[Group],
    pool: Sequence[Group],
    own_wanted: int,
    external_wanted: int,
    random: np.random.Generator,
    rule: AdvantageRule,
    sampling: str = "uniform_nonzero",
    per_source: int | None = 1,
    max_external_share: float = 1.0,
    seen: Seen = NOTHING,
) -> Batch:
    """A batch of I own and J external groups.

    external_wanted is J; at most floor(max_external_share * (I + J)) are taken. seen: what the node has trained on, for
    the strategy `novelty`. Where fewer than J survive, spare own groups, unfiltered like the others, fill the batch up
    to I + J as far as the node generated any.
    Raises UnknownStrategy, ValueError.
    """
    if not 0.0 <= max_external_share <= 1.0:
        raise ValueError(f"The external share lies in [0, 1], not {max_external_share}.")
    total = own_wanted + external_wanted
    allowed = min(external_wanted, int(max_external_share * total + 1e-9))
    external = sample_external(pool, allowed, random, sampling, per_source, seen)
    kept = sample_self(own, own_wanted, random)
    used = {id(group) for group in kept}
    spare = [group for group in own if id(group) not in used]
    kept += sample_self(spare, total - len(kept) - len(external), random)
    return Batch(
        own=tuple(with_advantages(group, rule) for group in kept),
        external=tuple(with_advantages(group, rule) for group in external),
        own_wanted=own_wanted,
        external_wanted=external_wanted,
        pool=len(pool),
    )
