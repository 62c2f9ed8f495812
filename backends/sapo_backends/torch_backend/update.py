"""One policy-gradient update of the flat parameters.

The surrogate loss of sapo_backends.reference on tensors, per micro-batch of a minibatch; AdamW (arXiv 1711.05101) on
one flat float32 tensor, by torch's fused kernel, which passes over memory once; the order of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from sapo_backends.base import CancelToken, PolicyUpdate, TrainSample, UpdateStats, token_weight
from sapo_backends.common.update import LogprobFn, UpdateTally, has_gradient, run_update
from sapo_backends.torch_backend.causal_lm import CausalModel, trained_tensors
from sapo_backends.torch_backend.decoder import TensorLayout
from sapo_backends.torch_backend.packing import pack_micro_batch
from sapo_backends.torch_backend.runtime import ShardWorkers, split_range


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """loss: this micro-batch's share of the minibatch's loss. clipped (T,): where clipping blocks the gradient."""

    loss: Tensor
    clipped: Tensor
    ratio: Tensor


def _tokens(values: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    return torch.tensor([v for row in values for v in row], dtype=like.dtype, device=like.device)


def _sequence_mean(values: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
    """Mean over each sequence's tokens (T,) -> (S,)."""
    return torch.zeros_like(lengths).index_add(0, sequence, values) / lengths


def policy_objective(
    logprobs: Tensor,
    sequence: Tensor,
    samples: Sequence[TrainSample],
    whole: Sequence[TrainSample],
    policy: PolicyUpdate,
) -> PolicyObjective:
    """logprobs (T,): of the samples' tokens that carry loss, concatenated; sequence (T,): each token's sample.

    whole: the full minibatch.
    """
    device, kind = logprobs.device, logprobs.dtype
    lengths = torch.tensor([s.learned for s in samples], dtype=kind, device=device)
    advantage = torch.tensor([s.advantage for s in samples], dtype=kind, device=device)[sequence]
    weight = torch.tensor([token_weight(s, whole, policy) for s in samples], dtype=kind, device=device)[sequence]
    current = logprobs.detach()
    old = current.clone()
    for row, sample in enumerate(samples):
        if sample.old_logprobs is not None:
            old[sequence == row] = _tokens([sample.masked(sample.old_logprobs)], old)
    difference = logprobs - old
    log_ratio = _log_importance_weight(samples, old, sequence)
    if policy.ratio_level == "sequence":
        difference = _sequence_mean(difference, sequence, lengths)[sequence]
        log_ratio = _sequence_mean(log_ratio, sequence, lengths)[sequence]
    ratio = difference.exp()
    limited = ratio.clamp(1.0 - policy.clip_low, 1.0 + policy.clip_high)
    unclipped, clipped_objective = ratio * advantage, limited * advantage
    truncated = log_ratio.exp().clamp(max=policy.tis_cap)
    loss = -(weight * truncated * torch.minimum(unclipped, clipped_objective)).sum()
    return PolicyObjective(loss, (unclipped > clipped_objective).detach(), ratio.detach())


def _log_importance_weight(samples: Sequence[TrainSample], old: Tensor, sequence: Tensor) -> Tensor:
    """log pi_old - log pi_behaviour (T,); 0 where the trainer itself generated the text."""
    log_ratio = torch.zeros_like(old)
    for row, sample in enumerate(samples):
        if sample.behaviour_logprobs is not None:
            at = sequence == row
            log_ratio[at] = old[at] - _tokens([sample.masked(sample.behaviour_logprobs)], old)
    return log_ratio


class FlatAdamW:
    """first, second: moment estimates of the gradient, as long as the parameters. steps: number taken so far."""

    def __init__(self, parameters: Tensor, workers: ShardWorkers) -> None:
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)
        self.steps = 0
        self._workers = workers

    @torch.no_grad()
    def step(self, parameters: Tensor, gradient: Tensor, policy: PolicyUpdate) -> float:
        """Clip by the global norm and step, in place; returns the norm before clipping. If the gradient is not finite,
        nothing changes."""
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            return norm
        shrink = min(1.0, policy.max_grad_norm / (norm + 1e-6))
        beta1, beta2 = policy.adam_betas

        @torch.no_grad()  # of each thread
        def some(part: range) -> None:
            tensors = (t[part.start : part.stop] for t in (parameters, gradient, self.first, self.second))
            weights, grad, first, second = tensors
            adamw(
                [weights],
                [grad.mul_(shrink)],
                [first],
                [second],
                [],
                [torch.tensor(float(self.steps), device=weights.device)],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=policy.learning_rate,
                weight_decay=policy.weight_decay,
                eps=policy.adam_eps,
                maximize=False,
            )

        self._workers.map(some, split_range(len(parameters), self._workers.count))
        self.steps += 1
        return norm


@dataclass(slots=True)
class PolicyTrainer:
    """A model with the tensor that is trained. budget: tokens in a micro-batch. share: the part of the budget in use
    now."""

    model: CausalModel
    flat: Tensor
    optimizer: FlatAdamW
    workers: ShardWorkers
    budget: int
    share: float = 1.0

    @property
    def layout(self) -> TensorLayout:
        """The layout of the trained tensor."""
        return self.model.adapter_layout or self.model.layout

    def gradient(
        self,
        part: Sequence[TrainSample],
        policy: PolicyUpdate,
        tally: UpdateTally,
        on_progress: Callable[[float], None] | None = None,
    ) -> Tensor:
        """d loss / d flat of one minibatch in float32, summed over its micro-batches in an order that does not depend
        on which worker is faster. Samples without advantage or tokens are left out."""
        active = [sample for sample in part if has_gradient(sample)]
        pairs = [(sample.prompt, sample.completion) for sample in active]
        batches = self.model.micro_batches(pairs, int(self.budget * self.share), self.workers.count)
        tensors = trained_tensors(self.model) or {}
        finished: list[int] = []

        def work(mine: Sequence[list[int]]) -> tuple[Tensor, UpdateTally]:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
            total, counts = torch.empty_like(self.flat), UpdateTally()
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

        # Longest first, dealt out in turn, so that every worker gets about the same amount.
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
        tally: UpdateTally,
    ) -> Sequence[Tensor | None]:
        """The gradient, by leaf tensor, of some of the minibatch's samples."""
        pairs = [(sample.prompt, sample.completion) for sample in samples]
        packed = pack_micro_batch(
            pairs, list(range(len(samples))), self.model.device, [sample.loss_mask for sample in samples]
        )
        scores = self.model.token_logprobs(packed, self.model.weights(leaves), policy.temperature)
        result = policy_objective(scores.logprobs, packed.sequence, samples, whole, policy)
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

        def gradient(part: Sequence[TrainSample], tally: UpdateTally, report: Callable[[float], None] | None) -> Tensor:
            return self.gradient(part, policy, tally, report)

        def step(grad: Tensor) -> float:
            return self.optimizer.step(self.flat, grad, policy)

        return run_update(batch, policy, seed, logprob_fn, gradient, step, cancel, on_progress)
