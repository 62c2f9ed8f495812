"""The surrogate loss of sapo_backends.reference on padded arrays, for a micro-batch of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from sapo_backends.base import PolicyUpdate, TrainSample
from sapo_backends.reference import token_weight


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """Of the samples of one micro-batch: weight, advantage (C, 1) and log-probabilities (C, n), 0 where unknown.

    has_old, has_behaviour (C, 1): whether the sample brings old or behaviour log-probabilities.
    """

    weight: Any
    advantage: Any
    lengths: Any
    old: Any
    has_old: Any
    behaviour: Any
    has_behaviour: Any


def _column(values: Sequence[float | bool], kind: Any) -> Any:
    return mx.array(np.array(values)[:, None]).astype(kind)


def _table(rows: Sequence[tuple[float, ...] | None], width: int) -> Any:
    table = np.zeros((len(rows), width), np.float32)
    for line, row in zip(table, rows, strict=True):
        line[: len(row or ())] = row or ()
    return mx.array(table)


def sample_arrays(
    samples: Sequence[TrainSample], whole: Sequence[TrainSample], policy: PolicyUpdate, width: int
) -> SampleArrays:
    """whole: the full minibatch that the samples are a part of."""
    return SampleArrays(
        weight=_column([token_weight(s, whole, policy) for s in samples], mx.float32),
        advantage=_column([s.advantage for s in samples], mx.float32),
        lengths=_column([len(s.completion) for s in samples], mx.float32),
        old=_table([s.old_logprobs for s in samples], width),
        has_old=_column([s.old_logprobs is not None for s in samples], mx.bool_),
        behaviour=_table([s.behaviour_logprobs for s in samples], width),
        has_behaviour=_column([s.behaviour_logprobs is not None for s in samples], mx.bool_),
    )


def objective(logprobs: Any, valid: Any, given: SampleArrays, policy: PolicyUpdate) -> tuple[Any, Any, Any]:
    """logprobs, valid (C, n) -> this micro-batch's share of the loss, where the clip holds the gradient back (C, n),
    ratios (C, n; 1 on padding)."""
    old = mx.where(given.has_old, given.old, mx.stop_gradient(logprobs))
    difference = mx.where(valid, logprobs - old, 0.0)
    log_ratio = mx.where(valid & given.has_behaviour, old - given.behaviour, 0.0)
    if policy.ratio_level == "sequence":
        difference = difference.sum(axis=1, keepdims=True) / given.lengths + mx.zeros_like(logprobs)
        log_ratio = log_ratio.sum(axis=1, keepdims=True) / given.lengths
    ratio = mx.exp(difference)
    unclipped = ratio * given.advantage
    clipped_objective = mx.clip(ratio, 1.0 - policy.clip_low, 1.0 + policy.clip_high) * given.advantage
    truncated = mx.minimum(mx.exp(log_ratio), policy.tis_cap)
    terms = mx.where(valid, given.weight * truncated * mx.minimum(unclipped, clipped_objective), 0.0)
    return -terms.sum(), (unclipped > clipped_objective) & valid, mx.where(valid, ratio, 1.0)
