"""SampleSelf: which local groups enter the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
