"""Tapered negatives: an external failure is pushed away only as far as this policy would still write it. Pure.

TOPR (arXiv 2503.14286): successes count in full, failures with the truncated importance ratio [pi / mu]_0^1 of the whole
completion, pi the receiver's policy and mu the sender's. A failure that the receiver would hardly write has a ratio near 0:
pushing it further away costs stability and teaches nothing. Leaving all failures out (external_advantages = "positive", the
app's default) is the same with a weight of 0. Needs the sender's log-probabilities, which the swarm's protocol does not
carry. Not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sapo_backends.base import TrainSample

LogProbs = Sequence[float]


def tapered(samples: Sequence[TrainSample], own: Sequence[LogProbs], sender: Sequence[LogProbs]) -> list[TrainSample]:
    """Negative advantages times min(1, pi / mu) of their completion, 0 where the sender's log-probabilities are unknown.

    own, sender: of each completion's tokens before the update. The weight is no part of the gradient.
    """
    weights = [
        math.exp(min(0.0, sum(o - b for o, b in zip(mine, theirs, strict=True)))) if theirs else 0.0
        for mine, theirs in zip(own, sender, strict=True)
    ]
    return [
        sample if sample.advantage >= 0 else replace(sample, advantage=sample.advantage * weight)
        for sample, weight in zip(samples, weights, strict=True)
    ]
