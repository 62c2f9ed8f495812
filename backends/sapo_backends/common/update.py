"""The part of an update that all trainers share: the order of its steps and the statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats
from sapo_backends.common.minibatches import LogprobFn, minibatches

Gradient = TypeVar("Gradient")
Report = Callable[[float], None]


@dataclass(slots=True)
class Tally:
    """Sums over micro-batches, in Python so that nothing of a micro-batch outlives it. By source: [local, external]."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    logprob: list[float] = field(default_factory=lambda: [0.0, 0.0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])

    def add(
        self,
        samples: Sequence[TrainSample],
        logprobs: Sequence[float],
        *,
        loss: float,
        entropy: float,
        clipped: int,
        ratio_max: float,
    ) -> None:
        """Count one micro-batch. logprobs: the sum over each sample's tokens; entropy, clipped: sums over all
        tokens."""
        self.loss += loss
        self.entropy += entropy
        self.clipped += clipped
        self.ratio_max = max(self.ratio_max, ratio_max)
        for sample, total in zip(samples, logprobs, strict=True):
            self.logprob[sample.external] += total
            self.tokens[sample.external] += len(sample.completion)

    def merge(self, other: Tally) -> None:
        """Add another worker's sums."""
        self.loss += other.loss
        self.entropy += other.entropy
        self.clipped += other.clipped
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        for source in (0, 1):
            self.logprob[source] += other.logprob[source]
            self.tokens[source] += other.tokens[source]


def has_gradient(sample: TrainSample) -> bool:
    """Whether a sample has a gradient."""
    return sample.advantage != 0.0 and len(sample.completion) > 0


def run_update(
    batch: Sequence[TrainSample],
    policy: PolicyUpdate,
    seed: int,
    logprob_fn: LogprobFn,
    gradient: Callable[[Sequence[TrainSample], Tally, Report | None], Gradient],
    step: Callable[[Gradient], float],
    cancel: CancelToken | None = None,
    on_progress: Report | None = None,
) -> UpdateStats:
    """One gradient and one optimizer step a minibatch; see Engine.update.

    gradient: of a minibatch, counted in the tally. step: applies it, gives its norm before clipping.
    """
    if cancel is not None:
        cancel.raise_if_cancelled()
    began = time.perf_counter()
    parts = minibatches(batch, policy, seed, logprob_fn)
    tally, norms = Tally(), list[float]()
    for done, part in enumerate(parts):
        if not any(map(has_gradient, part)):
            continue
        grad = gradient(part, tally, None if on_progress is None else _scaled(on_progress, done, len(parts)))
        if cancel is not None and not norms:
            cancel.raise_if_cancelled()
        norms.append(step(grad))
    return _stats(batch, tally, norms, max(len(parts), 1), time.perf_counter() - began)


def _scaled(report: Report, done: int, parts: int) -> Report:
    return lambda fraction: report((done + fraction) / parts)


def _ratio(total: float, count: int) -> float:
    return total / count if count else float("nan")


def _stats(batch: Sequence[TrainSample], tally: Tally, norms: list[float], parts: int, seconds: float) -> UpdateStats:
    trained = sum(tally.tokens)
    return UpdateStats(
        loss=tally.loss / parts,
        grad_norm=sum(norms) / len(norms) if norms else 0.0,
        steps=sum(math.isfinite(norm) for norm in norms),
        clip_fraction=_ratio(tally.clipped, trained),
        entropy=_ratio(tally.entropy, trained),
        ratio_max=tally.ratio_max if trained else float("nan"),
        logprob_local=_ratio(tally.logprob[0], tally.tokens[0]),
        logprob_external=_ratio(tally.logprob[1], tally.tokens[1]),
        tokens_local=sum(len(s.completion) for s in batch if not s.external),
        tokens_external=sum(len(s.completion) for s in batch if s.external),
        sequences_trained=sum(s.advantage != 0.0 for s in batch),
        sequences_skipped=sum(s.advantage == 0.0 for s in batch),
        seconds=seconds,
    )
