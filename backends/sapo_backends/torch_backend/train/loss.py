"""The surrogate loss of sapo_backends.reference on tensors, for a micro-batch of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sapo_backends.base import PolicyUpdate, TrainSample
from sapo_backends.reference import token_weight


@dataclass(frozen=True, slots=True)
class Objective:
    """loss: this micro-batch's share of the minibatch's loss. clipped (T,): where the clip holds the gradient back."""

    loss: Tensor
    clipped: Tensor
    ratio: Tensor


def _tokens(values: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    return torch.tensor([v for row in values for v in row], dtype=like.dtype, device=like.device)


def _sequence_mean(values: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
    """Mean over each sequence's tokens (T,) -> (S,)."""
    return torch.zeros_like(lengths).index_add(0, sequence, values) / lengths


def objective(
    logprobs: Tensor,
    sequence: Tensor,
    samples: Sequence[TrainSample],
    whole: Sequence[TrainSample],
    policy: PolicyUpdate,
) -> Objective:
    """logprobs (T,) of the samples' tokens one after another, sequence (T,) their rows; whole: the full minibatch."""
    device, kind = logprobs.device, logprobs.dtype
    lengths = torch.tensor([len(s.completion) for s in samples], dtype=kind, device=device)
    advantage = torch.tensor([s.advantage for s in samples], dtype=kind, device=device)[sequence]
    weight = torch.tensor([token_weight(s, whole, policy) for s in samples], dtype=kind, device=device)[sequence]
    current = logprobs.detach()
    old = current.clone()
    for row, sample in enumerate(samples):
        if sample.old_logprobs is not None:
            old[sequence == row] = _tokens([sample.old_logprobs], old)
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
    return Objective(loss, (unclipped > clipped_objective).detach(), ratio.detach())


def _log_importance_weight(samples: Sequence[TrainSample], old: Tensor, sequence: Tensor) -> Tensor:
    """log pi_old - log pi_behaviour (T,); 0 where the trainer itself generated the text."""
    log_ratio = torch.zeros_like(old)
    for row, sample in enumerate(samples):
        if sample.behaviour_logprobs is not None:
            at = sequence == row
            log_ratio[at] = old[at] - _tokens([sample.behaviour_logprobs], old)
    return log_ratio
