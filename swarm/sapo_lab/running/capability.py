"""A baseline that knows who generated a group: what a stronger or weaker node got right is no measure for this one. Pure.

After HACPO (arXiv 2603.02604): the baseline of an external group is its mean reward times the ratio of the receiver's and
the sender's success rates. A success of a stronger node is then further above what the receiver would have expected, and a
failure of it less far below. Between equal nodes nothing changes. HACPO lets several agents answer one question; here each
answers its own, so a group has one sender. Not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace

import numpy as np

from sapo_backends.base import TrainSample
from sapo_swarm.sapo.advantage import EPSILON, as_rewards, spread
from sapo_swarm.sapo.difficulty import Posterior
from sapo_swarm.types import Group

MOST = 2.0
"""The ratio of two rates is held between 1 / MOST and MOST: early ones are noise."""


def observe(rates: MutableMapping[str, Posterior], node: str, groups: Iterable[Group]) -> None:
    """Take in a node's rewards; old ones fade (sapo_swarm.sapo.difficulty)."""
    for group in groups:
        rates[node] = rates.get(node, Posterior()).after(group.rewards)


def ratio(own: Posterior, sender: Posterior) -> float:
    """The receiver's success rate over the sender's, limited."""
    return float(np.clip(own.mean / sender.mean, 1.0 / MOST, MOST))


def rebased(samples: Sequence[TrainSample], rewards: Sequence[float], capability: float) -> list[TrainSample]:
    """The samples of one group with (r - capability * mean) / (std + epsilon) in the place of (r - mean) / (std + epsilon)."""
    values = as_rewards(rewards)
    shift = (1.0 - capability) * float(values.mean()) / (spread(values) + EPSILON)
    return [replace(sample, advantage=sample.advantage + shift) for sample in samples]
