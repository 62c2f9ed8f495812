"""One policy-gradient update of the flat parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats
from sapo_backends.batching import Scorer, minibatches
from sapo_backends.torch_backend.layout import Layout
from sapo_backends.torch_backend.model import Model, trained_tensors
from sapo_backends.torch_backend.objective import Objective, objective
from sapo_backends.torch_backend.optimizer import FlatAdamW
from sapo_backends.torch_backend.packing import Packed, pack, plan
from sapo_backends.torch_backend.scoring import Scores
from sapo_backends.torch_backend.workers import Workers


@dataclass(slots=True)
class Tally:
    """Sums over micro-batches, in Python so that nothing of a micro-batch outlives it. By source: [own, external]."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    logprob: list[float] = field(default_factory=lambda: [0.0, 0.0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, samples: Sequence[TrainSample], packed: Packed, scores: Scores, result: Objective) -> None:
        """Count one micro-batch."""
        self.loss += float(result.loss.detach())
        self.entropy += float(scores.entropy.sum())
        self.clipped += int(result.clipped.sum())
        self.ratio_max = max(self.ratio_max, float(result.ratio.max()))
        sums = torch.zeros(len(samples), device=packed.sequence.device).index_add(
            0, packed.sequence, scores.logprobs.detach()
        )
        for sample, total in zip(samples, sums.tolist(), strict=True):
            self.logprob[sample.external] += total
            self.tokens[sample.external] += len(sample.completion)

    def merge(self, other: Tally) -> None:
        self.loss += other.loss
        self.entropy += other.entropy
        self.clipped += other.clipped
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        for source in (0, 1):
            self.logprob[source] += other.logprob[source]
            self.tokens[source] += other.tokens[source]


@dataclass(slots=True)
class Trainer:
    """A model with the tensor it trains. budget: padded tokens in a micro-batch."""

    model: Model
    flat: Tensor
    optimizer: FlatAdamW
    workers: Workers
    budget: int

    @property
    def layout(self) -> Layout:
        """Of the trained tensor."""
        return self.model.adapter_layout or self.model.layout

    def gradient(
        self,
        part: Sequence[TrainSample],
        policy: PolicyUpdate,
        tally: Tally,
        on_progress: Callable[[float], None] | None = None,
    ) -> Tensor:
        """d loss / d flat of one minibatch in float32, summed over its micro-batches in an order that does not depend
        on which worker is faster. Samples without advantage or tokens are left out."""
        active = [sample for sample in part if sample.advantage != 0.0 and sample.completion]
        pairs = [(sample.prompt, sample.completion) for sample in active]
        batches = plan(pairs, self.budget, self.workers.count)
        tensors = trained_tensors(self.model) or {}
        finished: list[int] = []

        def work(mine: Sequence[list[int]]) -> tuple[Tensor, Tally]:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
            total, counts = torch.zeros_like(self.flat), Tally()
            targets = list(self.layout.views(total).values())
            for members in mine:
                slopes = self._micro_batch([active[i] for i in members], part, policy, leaves, counts)
                for target, slope in zip(targets, slopes, strict=True):
                    if slope is not None:
                        target += slope
                finished.append(1)
                if on_progress is not None:
                    on_progress(len(finished) / len(batches))
            return total, counts

        # Longest first, dealt out in turn: every worker gets about the same amount.
        dealt = [batches[::-1][i :: self.workers.count] for i in range(min(self.workers.count, len(batches)))]
        result: Tensor | None = None
        for total, counts in self.workers.map(work, dealt):
            result = total if result is None else result.add_(total)
            tally.merge(counts)
        return torch.zeros_like(self.flat) if result is None else result

    def _micro_batch(
        self,
        samples: Sequence[TrainSample],
        whole: Sequence[TrainSample],
        policy: PolicyUpdate,
        leaves: Mapping[str, Tensor],
        tally: Tally,
    ) -> Sequence[Tensor | None]:
        """The gradient by each leaf of some of the minibatch's samples."""
        pairs = [(sample.prompt, sample.completion) for sample in samples]
        packed = pack(pairs, list(range(len(samples))), self.model.device, self.model.compute)
        scores = self.model.score(packed, self.model.weights(leaves), policy.temperature)
        result = objective(scores.logprobs, packed.sequence, samples, whole, policy)
        slopes = torch.autograd.grad(result.loss, list(leaves.values()), allow_unused=True)
        tally.add(samples, packed, scores, result)
        return slopes

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        score: Scorer,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update."""
        began = time.perf_counter()
        parts = minibatches(batch, policy, seed, score)
        tally, norms = Tally(), list[float]()
        for done, part in enumerate(parts):
            if not any(sample.advantage != 0.0 and sample.completion for sample in part):
                continue
            report = None if on_progress is None else _scaled(on_progress, done, len(parts))
            slope = self.gradient(part, policy, tally, report)
            if cancel is not None and not norms:
                cancel.raise_if_cancelled()
            norms.append(self.optimizer.step(self.flat, slope, policy))
        return _stats(batch, tally, norms, max(len(parts), 1), time.perf_counter() - began)


def _scaled(report: Callable[[float], None], done: int, parts: int) -> Callable[[float], None]:
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
        logprob_own=_ratio(tally.logprob[0], tally.tokens[0]),
        logprob_external=_ratio(tally.logprob[1], tally.tokens[1]),
        tokens_own=sum(len(s.completion) for s in batch if not s.external),
        tokens_external=sum(len(s.completion) for s in batch if s.external),
        sequences_trained=sum(s.advantage != 0.0 for s in batch),
        sequences_skipped=sum(s.advantage == 0.0 for s in batch),
        seconds=seconds,
    )
