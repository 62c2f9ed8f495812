"""One policy-gradient update of the trained tensors: the loss, the optimizer, the order of padded micro-batches.

The surrogate loss of sapo_backends.reference on padded arrays; AdamW (arXiv 1711.05101) with the torch engine's
arithmetic: global norm clip, decoupled decay, bias correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats, token_weight
from sapo_backends.common.update import (
    LogprobFn,
    UpdateTally,
    has_gradient,
    plan_micro_batches,
    run_update,
)
from sapo_backends.mlx_backend.model import SHAPE_STEP, MlxModel, PaddedBatch, Tensors, pad_micro_batch


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """For the samples of one micro-batch: weight, advantage (C, 1) and log-probabilities (C, n), 0 where unknown.

    has_old, has_behaviour (C, 1): whether the sample comes with old or behaviour log-probabilities.
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
    """whole: the full minibatch that contains the samples."""
    return SampleArrays(
        weight=_column([token_weight(s, whole, policy) for s in samples], mx.float32),
        advantage=_column([s.advantage for s in samples], mx.float32),
        lengths=_column([s.learned for s in samples], mx.float32),
        old=_table([s.old_logprobs for s in samples], width),
        has_old=_column([s.old_logprobs is not None for s in samples], mx.bool_),
        behaviour=_table([s.behaviour_logprobs for s in samples], width),
        has_behaviour=_column([s.behaviour_logprobs is not None for s in samples], mx.bool_),
    )


def policy_objective(logprobs: Any, valid: Any, given: SampleArrays, policy: PolicyUpdate) -> tuple[Any, Any, Any]:
    """logprobs, valid (C, n) -> this micro-batch's share of the loss, where clipping blocks the gradient (C, n),
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


class AdamW:
    """first, second: moment estimates by tensor name. steps: number taken so far."""

    def __init__(self, tensors: Tensors) -> None:
        self.first: Tensors = {name: mx.zeros_like(tensor) for name, tensor in tensors.items()}
        self.second: Tensors = {name: mx.zeros_like(tensor) for name, tensor in tensors.items()}
        self.steps = 0
        mx.eval(self.first, self.second)

    def step(self, tensors: Tensors, gradient: Tensors, policy: PolicyUpdate) -> float:
        """Replace the entries of `tensors`; returns the gradient's norm before clipping. If the gradient is not finite,
        nothing changes."""
        squares: Any = sum((grad.square().sum() for grad in gradient.values()), mx.array(0.0))
        norm = math.sqrt(float(squares))
        if not math.isfinite(norm):
            return norm
        shrink = min(1.0, policy.max_grad_norm / (norm + 1e-6))
        beta1, beta2 = policy.adam_betas
        self.steps += 1
        rate = policy.learning_rate / (1.0 - beta1**self.steps)
        correction = math.sqrt(1.0 - beta2**self.steps)
        decay = 1.0 - policy.learning_rate * policy.weight_decay
        for name, grad in gradient.items():
            grad = grad * shrink
            first = self.first[name] + (1.0 - beta1) * (grad - self.first[name])
            second = self.second[name] * beta2 + (1.0 - beta2) * grad.square()
            tensors[name] = tensors[name] * decay - rate * first / (second.sqrt() / correction + policy.adam_eps)
            self.first[name], self.second[name] = first, second
        mx.eval(tensors, self.first, self.second)
        return norm


def _count(tally: UpdateTally, packed: PaddedBatch, samples: Sequence[TrainSample], results: Sequence[Any]) -> None:
    """results: loss, clipped, ratio, logprobs, entropy of one micro-batch."""
    loss, clipped, ratio, logprobs, entropy = results
    valid = np.array(packed.valid)
    tally.add(
        samples,
        np.where(valid, np.array(logprobs, dtype=np.float64), 0.0).sum(axis=1).tolist(),
        loss=float(loss),
        entropy=float(np.array(entropy, dtype=np.float64)[valid].sum()),
        clipped=int(clipped.sum()),
        ratio_max=float(ratio.max()),
    )


def _grad(model: MlxModel, packed: PaddedBatch, given: SampleArrays, policy: PolicyUpdate) -> tuple[Any, Tensors]:
    """((loss, clipped, ratio, logprobs, entropy), d loss / d trained) of one micro-batch."""

    def loss(tensors: Tensors) -> tuple[Any, ...]:
        model.use(tensors)
        scores = model.token_logprobs(packed, policy.temperature)
        value, clipped, ratio = policy_objective(scores.logprobs, packed.valid, given, policy)
        return value, clipped, ratio, scores.logprobs, scores.entropy

    try:
        results, grads = mx.value_and_grad(loss)(model.trained)
    finally:
        model.settle()  # otherwise the module would keep the differentiation's tracers
    mx.eval(results, grads)
    return results, grads


def minibatch_gradient(
    model: MlxModel,
    part: Sequence[TrainSample],
    policy: PolicyUpdate,
    budget: int,
    tally: UpdateTally,
    on_progress: Callable[[float], None] | None = None,
) -> Tensors:
    """d loss / d trained tensors of one minibatch, summed over its micro-batches in float32."""
    active = [sample for sample in part if has_gradient(sample)]
    pairs = [(sample.prompt, sample.completion) for sample in active]
    masks = [sample.loss_mask for sample in active]
    batches = plan_micro_batches(pairs, budget, step=SHAPE_STEP)
    total: Tensors = {}
    for done, members in enumerate(batches):
        samples = [active[i] for i in members]
        packed = pad_micro_batch(pairs, members, masks)
        arrays = sample_arrays(samples, part, policy, packed.targets.shape[1])
        results, grads = _grad(model, packed, arrays, policy)
        total = {name: grad + total[name] if total else grad for name, grad in grads.items()}
        mx.eval(total)
        _count(tally, packed, samples, results)
        if on_progress is not None:
            on_progress((done + 1) / len(batches))
    return total


def run_policy_update(
    model: MlxModel,
    optimizer: AdamW,
    batch: Sequence[TrainSample],
    policy: PolicyUpdate,
    seed: int,
    budget: int,
    logprob_fn: LogprobFn,
    cancel: CancelToken | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> UpdateStats:
    """See Engine.update. budget: padded tokens in a micro-batch."""

    def grad(part: Sequence[TrainSample], tally: UpdateTally, report: Callable[[float], None] | None) -> Tensors:
        return minibatch_gradient(model, part, policy, budget, tally, report)

    def step(grads: Tensors) -> float:
        norm = optimizer.step(model.trained, grads, policy)
        model.settle()
        return norm

    return run_update(batch, policy, seed, logprob_fn, grad, step, cancel, on_progress)
