"""One policy-gradient update of the trained tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from sapo_backends.base import CancelToken, PolicyUpdate, TokenSequence, TrainSample, UpdateStats
from sapo_backends.batching import minibatches
from sapo_backends.mlx_backend.model import MlxModel, Tensors
from sapo_backends.mlx_backend.objective import Recorded, objective, recorded
from sapo_backends.mlx_backend.optimizer import AdamW
from sapo_backends.mlx_backend.packing import Packed, pack, plan


@dataclass(slots=True)
class Tally:
    """Sums over an update, kept in Python so that nothing of a micro-batch outlives it."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    tokens: int = 0
    ratio_max: float = float("nan")
    logprob: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    counted: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    norms: list[float] = field(default_factory=list)

    def add(self, packed: Packed, samples: Sequence[TrainSample], results: Sequence[Any]) -> None:
        """results: loss, clipped, ratio, logprobs, entropy of one micro-batch."""
        loss, clipped, ratio, logprobs, entropy = results
        valid = np.array(packed.valid)
        self.loss += float(loss)
        self.clipped += int(clipped.sum())
        self.tokens += int(valid.sum())
        self.entropy += float(np.array(entropy, dtype=np.float64)[valid].sum())
        self.ratio_max = float(np.nanmax([self.ratio_max, float(ratio.max())]))
        sums = np.where(valid, np.array(logprobs, dtype=np.float64), 0.0).sum(axis=1)
        for sample, total in zip(samples, sums, strict=True):
            self.logprob[sample.external] += float(total)
            self.counted[sample.external] += len(sample.completion)


def _slope(model: MlxModel, packed: Packed, given: Recorded, policy: PolicyUpdate) -> tuple[Any, Tensors]:
    """((loss, clipped, ratio, logprobs, entropy), d loss / d trained) of one micro-batch."""

    def loss(tensors: Tensors) -> tuple[Any, ...]:
        model.use(tensors)
        scores = model.score(packed, policy.temperature)
        value, clipped, ratio = objective(scores.logprobs, packed.valid, given, policy)
        return value, clipped, ratio, scores.logprobs, scores.entropy

    try:
        results, slopes = mx.value_and_grad(loss)(model.trained)
    finally:
        model.settle()  # without this the module would keep what the differentiation passed through it
    mx.eval(results, slopes)
    return results, slopes


def gradient(
    model: MlxModel,
    part: Sequence[TrainSample],
    policy: PolicyUpdate,
    budget: int,
    tally: Tally,
    on_progress: Callable[[float], None] | None = None,
) -> Tensors:
    """d loss / d trained tensors of one minibatch, summed over its micro-batches in float32."""
    active = [sample for sample in part if sample.advantage != 0.0 and sample.completion]
    pairs = [(sample.prompt, sample.completion) for sample in active]
    batches = plan(pairs, budget)
    total: Tensors = {}
    for done, members in enumerate(batches):
        samples = [active[i] for i in members]
        packed = pack(pairs, members)
        given = recorded(samples, part, policy, packed.targets.shape[1])
        results, slopes = _slope(model, packed, given, policy)
        total = {name: slope + total[name] if total else slope for name, slope in slopes.items()}
        mx.eval(total)
        tally.add(packed, samples, results)
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
    score: Callable[[Sequence[TokenSequence], float], list[list[float]]],
    cancel: CancelToken | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> UpdateStats:
    """See Engine.update. budget: padded tokens in a micro-batch."""
    began = time.perf_counter()
    parts = minibatches(batch, policy, seed, score)
    tally = Tally()
    for done, part in enumerate(parts):
        if not any(sample.advantage != 0.0 and sample.completion for sample in part):
            continue
        if cancel is not None and not tally.norms:
            cancel.raise_if_cancelled()
        report = None if on_progress is None else _scaled(on_progress, done / len(parts), 1.0 / len(parts))
        slope = gradient(model, part, policy, budget, tally, report)
        if cancel is not None and not tally.norms:
            cancel.raise_if_cancelled()
        tally.norms.append(optimizer.step(model.trained, slope, policy))
        model.settle()
    return _stats(batch, tally, max(len(parts), 1), time.perf_counter() - began)


def _scaled(report: Callable[[float], None], start: float, share: float) -> Callable[[float], None]:
    return lambda fraction: report(start + share * fraction)


def _mean(total: float, count: int) -> float:
    return total / count if count else float("nan")


def _stats(batch: Sequence[TrainSample], tally: Tally, parts: int, seconds: float) -> UpdateStats:
    return UpdateStats(
        loss=tally.loss / parts,
        grad_norm=sum(tally.norms) / len(tally.norms) if tally.norms else 0.0,
        steps=sum(math.isfinite(norm) for norm in tally.norms),
        clip_fraction=_mean(tally.clipped, tally.tokens),
        entropy=_mean(tally.entropy, tally.tokens),
        ratio_max=tally.ratio_max,
        logprob_own=_mean(tally.logprob[False], tally.counted[False]),
        logprob_external=_mean(tally.logprob[True], tally.counted[True]),
        tokens_own=sum(len(s.completion) for s in batch if not s.external),
        tokens_external=sum(len(s.completion) for s in batch if s.external),
        sequences_trained=sum(s.advantage != 0.0 for s in batch),
        sequences_skipped=sum(s.advantage == 0.0 for s in batch),
        seconds=seconds,
    )
