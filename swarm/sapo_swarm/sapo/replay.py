"""Own-success replay: local groups of earlier rounds in which something succeeded are trained on again. Pure.

A node uses each success once, in the round that generated it. Where success is rare most rounds then have hardly a policy
gradient; replay gives them one without generating a token. The policy has moved on since, so that

- only completions with a positive advantage are replayed: the update is advantage-weighted likelihood of what worked, and
  no failure of an older policy is pushed away (as with external groups, docs/decisions/0013-default-strategy.md);
- the chance of a group halves every `half_life` rounds (age decay), and it is forgotten after FORGOTTEN half-lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.sapo.sample_external import has_advantage
from sapo_swarm.types import Group

FORGOTTEN = 8
"""Half-lives after which a group is dropped: its weight is below half a percent of a new one's."""


class Past(msgspec.Struct, frozen=True):
    """A local group and the round that generated it."""

    round: int
    group: Group


def remember(past: Sequence[Past], round_number: int, groups: Iterable[Group], half_life: int) -> list[Past]:
    """What can be replayed after this round: what was there and is not too old, and its groups with a non-zero advantage."""
    oldest = round_number - FORGOTTEN * half_life
    return [
        *(entry for entry in past if entry.round >= oldest),
        *(Past(round_number, group) for group in groups if has_advantage(group)),
    ]


def age_weights(past: Sequence[Past], round_number: int, half_life: int) -> NDArray[np.float64]:
    """(N,) 2^(-age / half_life), age in rounds; 0 for groups of this round, which are in its batch anyway."""
    ages = np.array([round_number - entry.round for entry in past], dtype=np.float64)
    weights: NDArray[np.float64] = np.where(ages > 0, np.exp2(-ages / half_life), 0.0)
    return weights


def sample_replay(
    past: Sequence[Past], round_number: int, wanted: int, half_life: int, random: np.random.Generator
) -> list[Group]:
    """Up to `wanted` groups of earlier rounds, without replacement, with probability proportional to their age_weights.

    `random` is not advanced where nothing is wanted or nothing is there. Raises ValueError for a half_life below 1.
    """
    if half_life < 1:
        raise ValueError(f"The half-life of replay is at least one round, not {half_life}.")
    weights = age_weights(past, round_number, half_life)
    count = min(wanted, int(np.count_nonzero(weights)))
    if count <= 0:
        return []
    chosen = random.choice(len(past), size=count, replace=False, p=weights / weights.sum())
    return [past[index].group for index in chosen.tolist()]
