"""One policy-gradient update of the trained tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats
from sapo_backends.common.minibatches import LogprobFn
from sapo_backends.common.packing import plan_micro_batches
from sapo_backends.common.update import Tally, has_gradient, run_update
from sapo_backends.mlx_backend.kv_cache import SHAPE_STEP
from sapo_backends.mlx_backend.model import MlxModel, Tensors
from sapo_backends.mlx_backend.packing import Packed, pack
from sapo_backends.mlx_backend.train.loss import SampleArrays, objective, sample_arrays
from sapo_backends.mlx_backend.train.optimizer import AdamW


def _count(tally: Tally, packed: Packed, samples: Sequence[TrainSample], results: Sequence[Any]) -> None:
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


def _grad(model: MlxModel, packed: Packed, given: SampleArrays, policy: PolicyUpdate) -> tuple[Any, Tensors]:
    """((loss, clipped, ratio, logprobs, entropy), d loss / d trained) of one micro-batch."""

    def loss(tensors: Tensors) -> tuple[Any, ...]:
        model.use(tensors)
        scores = model.token_logprobs(packed, policy.temperature)
        value, clipped, ratio = objective(scores.logprobs, packed.valid, given, policy)
        return value, clipped, ratio, scores.logprobs, scores.entropy

    try:
        results, grads = mx.value_and_grad(loss)(model.trained)
    finally:
        model.settle()  # without this the module would keep what the differentiation passed through it
    mx.eval(results, grads)
    return results, grads


def gradient(
    model: MlxModel,
    part: Sequence[TrainSample],
    policy: PolicyUpdate,
    budget: int,
    tally: Tally,
    on_progress: Callable[[float], None] | None = None,
) -> Tensors:
    """d loss / d trained tensors of one minibatch, summed over its micro-batches in float32."""
    active = [sample for sample in part if has_gradient(sample)]
    pairs = [(sample.prompt, sample.completion) for sample in active]
    batches = plan_micro_batches(pairs, budget, step=SHAPE_STEP)
    total: Tensors = {}
    for done, members in enumerate(batches):
        samples = [active[i] for i in members]
        packed = pack(pairs, members)
        given = sample_arrays(samples, part, policy, packed.targets.shape[1])
        results, grads = _grad(model, packed, given, policy)
        total = {name: grad + total[name] if total else grad for name, grad in grads.items()}
        mx.eval(total)
        _count(tally, packed, samples, results)
        if on_progress is not None:
            on_progress((done + 1) / len(batches))
    return total


def update(
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

    def grad(part: Sequence[TrainSample], tally: Tally, report: Callable[[float], None] | None) -> Tensors:
        return gradient(model, part, policy, budget, tally, report)

    def step(grads: Tensors) -> float:
        norm = optimizer.step(model.trained, grads, policy)
        model.settle()
        return norm

    return run_update(batch, policy, seed, logprob_fn, grad, step, cancel, on_progress)
