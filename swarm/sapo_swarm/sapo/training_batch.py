"""SAPO's training batch: from rewards to advantages, the selection of local and external groups, and the batch of both. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.errors import UnknownName
from sapo_swarm.types import Group, TaskRef

# From a group's rewards to the advantages of its completions. float64 throughout.

EPSILON = 1e-6
MIN_SPREAD = 0.05
"""Below this standard deviation a group gives zero advantages: eight strict 0/1 rewards have 0 or at least 0.33; partial
credit of 0.01 against 0.05 has 0.02 and must not become plus and minus one sigma."""

Rewards = NDArray[np.float64]
Advantages = NDArray[np.float64]
AdvantageRule = Callable[[Rewards], Advantages]
"""(G,) rewards -> (G,) advantages of one group; all zero where its rewards are (nearly) equal."""


def as_rewards(rewards: Sequence[float] | Rewards) -> Rewards:
    """(G,) float64. Raises ValueError on NaN, infinity or an empty group."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"A group needs finite rewards, not {rewards!r}.")
    return values


def reward_std(rewards: Rewards) -> float:
    """Population standard deviation of a group's rewards."""
    return float(np.std(rewards))


def normalised_advantages(rewards: Rewards) -> Advantages:
    """(r - mean) / (std + EPSILON): GRPO (arXiv 2402.03300, section 4.1.2); zero where std < MIN_SPREAD."""
    deviation = reward_std(rewards)
    if deviation < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = (rewards - rewards.mean()) / (deviation + EPSILON)
    return advantages


def centred_advantages(rewards: Rewards) -> Advantages:
    """r - mean, not divided by the deviation: Dr. GRPO (arXiv 2503.20783, section 3.2)."""
    if reward_std(rewards) < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = rewards - rewards.mean()
    return advantages


def mean_normalised(rewards: Rewards) -> Advantages:
    """(r - mean) / mean: MaxRL (arXiv 2602.02710). Zero where std < MIN_SPREAD; rewards are not negative."""
    mean = float(rewards.mean())
    if reward_std(rewards) < MIN_SPREAD or mean <= 0.0:
        return np.zeros_like(rewards)
    advantages: Advantages = rewards / mean - 1.0
    return advantages


def leave_one_out(rewards: Rewards) -> Advantages:
    """r_i - mean of the others: RLOO (arXiv 2402.14740, section 2.2). Equals centred * G / (G - 1)."""
    size = rewards.size
    if size < 2 or reward_std(rewards) < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = (rewards - rewards.mean()) * (size / (size - 1))
    return advantages


def down_sampled(rewards: Rewards) -> Advantages:
    """GRPO's advantages on the half of the group with the most different rewards, zero for the rest, which the update leaves
    out: PODS, arXiv 2504.13818. The subset of largest variance consists of the highest and the lowest rewards."""
    half, order = max(2, rewards.size // 2), np.argsort(rewards, kind="stable")
    ends = [np.concatenate([order[: half - top], order[rewards.size - top :]]) for top in range(half + 1)]
    kept = max(ends, key=lambda places: reward_std(rewards[places]))
    advantages = np.zeros_like(rewards)
    advantages[kept] = normalised_advantages(rewards[kept])
    return advantages


# SampleExternal: which external groups enter the batch. Strategies are found by name.
#
# ================  ====================================================================================================
# uniform_nonzero   the paper's controlled experiment: drop groups whose advantages are all zero, sample uniformly
# uniform           the paper's open demo: sample uniformly, no filter
# reward_guided     as uniform_nonzero, with weight p (1 - p) of the group's mean reward p: half-solved questions have
#                   the largest policy gradient
# none              no external groups
# ================  ====================================================================================================

Strategy = Callable[[Sequence[Group]], NDArray[np.float64]]
"""(N,) non-negative weights of N groups; 0 leaves a group out."""


def has_advantage(group: Group) -> bool:
    """The group's advantages are not all zero: the spread of its rewards reaches MIN_SPREAD."""
    return reward_std(as_rewards(group.rewards)) >= MIN_SPREAD


def _uniform(groups: Sequence[Group]) -> NDArray[np.float64]:
    return np.ones(len(groups))


def _uniform_nonzero(groups: Sequence[Group]) -> NDArray[np.float64]:
    return np.array([float(has_advantage(g)) for g in groups])


def _reward_guided(groups: Sequence[Group]) -> NDArray[np.float64]:
    means = np.array([np.mean(g.rewards) for g in groups])
    floor = 1e-3  # a group with a mean of (almost) 0 or 1 stays possible
    return _uniform_nonzero(groups) * np.maximum(means * (1.0 - means), floor)


def _none(groups: Sequence[Group]) -> NDArray[np.float64]:
    return np.zeros(len(groups))


STRATEGIES: dict[str, Strategy] = {
    "uniform_nonzero": _uniform_nonzero,
    "uniform": _uniform,
    "reward_guided": _reward_guided,
    "none": _none,
}


def find_strategy(name: str) -> Strategy:
    """Raises UnknownName, which names the nearest."""
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise UnknownName("sampling strategy", name, STRATEGIES)
    return strategy


def sample_external(
    pool: Sequence[Group],
    wanted: int,
    random: np.random.Generator,
    sampling: str = "uniform_nonzero",
    per_source: int | None = 1,
) -> list[Group]:
    """Up to `wanted` groups of the pool, without replacement, at most per_source of one node (None: no cap).

    One draw after another with probability proportional to the strategy's weights; a node that reaches the cap leaves the
    pool. Fewer are returned if fewer survive the filter and the cap. Raises UnknownName.
    """
    if wanted < 0 or (per_source is not None and per_source < 1):
        raise ValueError(f"Cannot sample {wanted} groups with at most {per_source} a source.")
    if not pool or wanted == 0:
        find_strategy(sampling)
        return []
    weights = np.array(find_strategy(sampling)(pool), dtype=np.float64)
    taken: dict[str, int] = {}
    chosen: list[Group] = []
    while len(chosen) < wanted and weights.sum() > 0:
        index = int(random.choice(len(pool), p=weights / weights.sum()))
        group = pool[index]
        chosen.append(group)
        weights[index] = 0.0
        taken[group.node] = taken.get(group.node, 0) + 1
        if taken[group.node] == per_source:
            weights[[i for i, other in enumerate(pool) if other.node == group.node]] = 0.0
    return chosen


# Own-success replay: local groups of earlier rounds in which something succeeded are trained on again. Pure.
#
# A node uses each success once, in the round that generated it. If success is rare, most rounds then have hardly any
# policy gradient; replay gives them one without generating a token. The policy has moved on since, so:
#
# - only completions with a positive advantage are replayed: the update is advantage-weighted likelihood of what
#   worked, and no failure of an older policy is pushed away (as with external groups, docs/decisions/0013-default-strategy.md);
# - the chance of a group halves every `half_life` rounds (age decay), and it is forgotten after FORGOTTEN half-lives.

FORGOTTEN = 8
"""Half-lives after which a group is dropped: its weight is below half a percent of a new one's."""


class ReplayEntry(msgspec.Struct, frozen=True):
    """A local group and the round that generated it."""

    round: int
    group: Group


def update_replay_entries(
    past: Sequence[ReplayEntry], round_number: int, groups: Iterable[Group], half_life: int
) -> list[ReplayEntry]:
    """What can be replayed after this round: earlier entries that are not too old, and this round's groups with a non-zero
    advantage."""
    oldest = round_number - FORGOTTEN * half_life
    return [
        *(entry for entry in past if entry.round >= oldest),
        *(ReplayEntry(round_number, group) for group in groups if has_advantage(group)),
    ]


def age_weights(past: Sequence[ReplayEntry], round_number: int, half_life: int) -> NDArray[np.float64]:
    """(N,) 2^(-age / half_life), age in rounds; 0 for groups of this round, which are in its batch anyway."""
    ages = np.array([round_number - entry.round for entry in past], dtype=np.float64)
    weights: NDArray[np.float64] = np.where(ages > 0, np.exp2(-ages / half_life), 0.0)
    return weights


def sample_replay(
    past: Sequence[ReplayEntry], round_number: int, wanted: int, half_life: int, random: np.random.Generator
) -> list[Group]:
    """Up to `wanted` groups of earlier rounds, without replacement, with probability proportional to their age_weights.

    `random` is not advanced if nothing is wanted or available. Raises ValueError for a half_life below 1.
    """
    if half_life < 1:
        raise ValueError(f"The half-life of replay is at least one round, not {half_life}.")
    weights = age_weights(past, round_number, half_life)
    count = min(wanted, int(np.count_nonzero(weights)))
    if count <= 0:
        return []
    chosen = random.choice(len(past), size=count, replace=False, p=weights / weights.sum())
    return [past[index].group for index in chosen.tolist()]


# T <- SampleSelf(I) and SampleExternal(J): the training batch, with advantages.


def sample_self(groups: Sequence[Group], wanted: int, random: np.random.Generator) -> list[Group]:
    """Up to `wanted` local groups, uniformly without replacement, in their order.

    Unfiltered as in the paper: groups with equal rewards keep their place (and their share of the loss's denominator). If
    there are exactly `wanted` groups, `random` is not advanced.
    """
    if wanted < 0:
        raise ValueError(f"Cannot sample {wanted} groups.")
    if len(groups) <= wanted:
        return list(groups)
    chosen = sorted(random.choice(len(groups), size=wanted, replace=False).tolist())
    return [groups[i] for i in chosen]


def questions_to_sample(local: int, external: int, available: int) -> int:
    """Questions that a node samples for a batch of I = local and J = external: I, plus one for each external group that is
    not available, but at most I more. With I >= J, or I = 0, the batch is always full; else it is as large as the pool
    allows."""
    return local + max(0, min(local or external, external) - available)


def with_advantages(group: Group, rule: AdvantageRule, penalties: Sequence[float] = ()) -> Group:
    """The group with the advantage of each completion. penalties: one a completion, subtracted from the rewards first. Raises
    ValueError on rewards that are not finite."""
    rewards = as_rewards(group.rewards)
    values = rule(rewards - as_rewards(penalties) if penalties else rewards)
    return msgspec.structs.replace(group, advantages=tuple(float(value) for value in values))


NO_PENALTIES: Mapping[TaskRef, Sequence[float]] = {}


def assemble_batch(
    local: Sequence[Group],
    pool: Sequence[Group],
    local_wanted: int,
    external_wanted: int,
    random: np.random.Generator,
    rule: AdvantageRule,
    sampling: str = "uniform_nonzero",
    per_source: int | None = 1,
    penalties: Mapping[TaskRef, Sequence[float]] = NO_PENALTIES,
) -> list[Group]:
    """What one update trains on: I local and then J external groups, with their advantages.

    If fewer than J survive, spare local groups, unfiltered like the rest, fill the batch up to I + J as far as the node
    generated any. J may exceed I: what limits a hostile source is per_source, the log-probability floor and the tripwire, not
    a share of the batch (the measured default for larger models is 2/8). penalties: of local groups, by question. Raises
    UnknownName, ValueError.
    """
    total = local_wanted + external_wanted
    external = sample_external(pool, external_wanted, random, sampling, per_source)
    chosen = sample_self(local, local_wanted, random)
    used = {id(group) for group in chosen}
    spare = [group for group in local if id(group) not in used]
    chosen += sample_self(spare, total - len(chosen) - len(external), random)
    own = [with_advantages(group, rule, penalties.get(group.question.ref, ())) for group in chosen]
    return own + [with_advantages(group, rule) for group in external]
