"""One policy-gradient update of the flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats
from sapo_backends.common.minibatches import LogprobFn
from sapo_backends.common.packing import plan_micro_batches
from sapo_backends.common.update import Tally, has_gradient, run_update
from sapo_backends.torch_backend.causal_lm import Model, trained_tensors
from sapo_backends.torch_backend.model.flat_parameters import Layout
from sapo_backends.torch_backend.ops.packing import pack
from sapo_backends.torch_backend.runtime.workers import Workers
from sapo_backends.torch_backend.train.loss import objective
from sapo_backends.torch_backend.train.optimizer import FlatAdamW


@dataclass(slots=True)
class Trainer:
    """A model with the tensor it has_gradient. budget: tokens in a micro-batch."""

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
        active = [sample for sample in part if has_gradient(sample)]
        pairs = [(sample.prompt, sample.completion) for sample in active]
        batches = plan_micro_batches(pairs, self.budget, self.workers.count, flat=True)
        tensors = trained_tensors(self.model) or {}
        finished: list[int] = []

        def work(mine: Sequence[list[int]]) -> tuple[Tensor, Tally]:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
            total, counts = torch.empty_like(self.flat), Tally()
            targets = list(self.layout.views(total).values())
            for number, members in enumerate(mine):
                grads = self._micro_batch([active[i] for i in members], part, policy, leaves, counts)
                for target, grad in zip(targets, grads, strict=True):
                    if grad is not None:
                        target.add_(grad) if number else target.copy_(grad)
                    elif not number:
                        target.zero_()
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
        packed = pack(pairs, list(range(len(samples))), self.model.device)
        scores = self.model.token_logprobs(packed, self.model.weights(leaves), policy.temperature)
        result = objective(scores.logprobs, packed.sequence, samples, whole, policy)
        grads = torch.autograd.grad(result.loss, list(leaves.values()), allow_unused=True)
        sums = torch.zeros(len(samples), device=packed.sequence.device)
        tally.add(
            samples,
            sums.index_add_(0, packed.sequence, scores.logprobs.detach()).tolist(),
            loss=float(result.loss.detach()),
            entropy=float(scores.entropy.sum()),
            clipped=int(result.clipped.sum()),
            ratio_max=float(result.ratio.max()),
        )
        return grads

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        logprob_fn: LogprobFn,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update."""

        def gradient(part: Sequence[TrainSample], tally: Tally, report: Callable[[float], None] | None) -> Tensor:
            return self.gradient(part, policy, tally, report)

        def step(grad: Tensor) -> float:
            return self.optimizer.step(self.flat, grad, policy)

        return run_update(batch, policy, seed, logprob_fn, gradient, step, cancel, on_progress)
