"""A rule that moves I and J: as many external groups as local ones fall short, and no more. Pure.

A batch should hold a target number of non-zero-advantage groups. Of local groups a share f has a non-zero advantage, of
external ones (filtered) all. J is the smallest number that makes up the difference: close to 0 if success is frequent, larger
if it is rare. J falls when external text drifts from what this policy would write, and when held-out pass@1 falls.
"""

from __future__ import annotations

import math

import msgspec


class AdaptiveRule(msgspec.Struct, frozen=True):
    """wanted: non-zero-advantage groups a batch should hold, as a share of it. most: largest external share. gap: nats per
    token by which external text may be less likely than local text. memory: rounds over which the signals are averaged.
    every: rounds between two moves."""

    wanted: float = 0.25
    most: float = 0.5
    gap: float = 1.0
    memory: float = 20.0
    every: int = 5


class BatchSplit(msgspec.Struct, frozen=True):
    """Local and external groups of a batch, and the signals they follow.

    nonzero_share: moving average of the non-zero-advantage share of local groups, None before the first round. gap: moving
    average of the local minus the external log-probability per token. trend: last change of held-out pass@1 in standard
    errors. age: rounds since the last move.
    """

    local: int = msgspec.field(name="own")
    external: int
    nonzero_share: float | None = None
    gap: float = 0.0
    trend: float = 0.0
    age: int = 0


def observe_round(split: BatchSplit, nonzero_share: float, gap: float | None, rule: AdaptiveRule) -> BatchSplit:
    """Add a round: the non-zero-advantage share of the local groups, and the log-probability gap if there was one."""
    weight = 1.0 / rule.memory
    share = (
        nonzero_share
        if split.nonzero_share is None
        else split.nonzero_share + weight * (nonzero_share - split.nonzero_share)
    )
    drift = split.gap if gap is None else split.gap + weight * (gap - split.gap)
    return msgspec.structs.replace(split, nonzero_share=share, gap=drift, age=split.age + 1)


def observe_held_out(split: BatchSplit, before: float, after: float, items: int) -> BatchSplit:
    """Add two successive held-out results on this many items: the change in standard errors."""
    error = math.sqrt(max(before * (1 - before) + after * (1 - after), 1e-9) / max(items, 1))
    return msgspec.structs.replace(split, trend=(after - before) / error)


def target_external_groups(split: BatchSplit, rule: AdaptiveRule) -> int:
    """The J that the signals ask for."""
    total = split.local + split.external
    most = math.floor(rule.most * total)
    share = split.nonzero_share or 0.0
    needed = next((j for j in range(most + 1) if share * (total - j) + j >= rule.wanted * total), most)
    excess = max(0, math.ceil((split.gap - rule.gap) / rule.gap)) if rule.gap > 0 else 0
    return max(0, needed - excess - (split.trend < -2.0))


def adjust_split(split: BatchSplit, rule: AdaptiveRule) -> BatchSplit:
    """At most one group toward the target, at most every `every` rounds: no oscillation."""
    aim = target_external_groups(split, rule)
    if split.age < rule.every or aim == split.external:
        return split
    step = 1 if aim > split.external else -1
    return msgspec.structs.replace(split, local=split.local - step, external=split.external + step, age=0)
