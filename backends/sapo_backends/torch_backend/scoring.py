"""Log-probabilities of given tokens without ever holding all logits.

The forward pass goes through the unembedding in chunks of rows and keeps two numbers a row; the backward pass makes
each chunk's probabilities again, unless all of them are small enough to keep. For a vocabulary of 151k this is the
difference between gigabytes and megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MiB in float32."""
KEEP_ELEMENTS = 1 << 22
"""Probabilities of up to this many tokens times vocabulary are kept for the backward pass."""


@dataclass(frozen=True, slots=True)
class Scores:
    """logprobs (T,) float32, differentiable; entropy (T,) of the distribution each token was drawn from."""

    logprobs: Tensor
    entropy: Tensor


def _logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    """(rows, V) in float32 at least."""
    logits = torch.nn.functional.linear(hidden, head)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        rows = max(1, CHUNK_ELEMENTS // head.shape[0])
        chosen, entropy, kept = [], [], []
        keep = ctx.needs_input_grad[0] and hidden.shape[0] * head.shape[0] <= KEEP_ELEMENTS
        for part, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            logits = _logits(part, head, temperature)  # (rows, V)
            probabilities = logits.softmax(dim=-1)
            # The largest probability is never too small to take its logarithm.
            total = logits.amax(dim=-1) - probabilities.amax(dim=-1).log()
            chosen.append(logits.gather(1, target[:, None])[:, 0] - total)
            entropy.append(total - torch.linalg.vecdot(probabilities, logits))
            if keep:
                kept.append(probabilities)
        ctx.save_for_backward(hidden, head, targets, *kept)
        ctx.temperature, ctx.rows = temperature, rows
        entropies = torch.cat(entropy)
        ctx.mark_non_differentiable(entropies)
        return torch.cat(chosen), entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, head, targets, *kept = ctx.saved_tensors
        slope = gradients[0] / ctx.temperature  # (T,)
        into_hidden = torch.empty_like(hidden)
        into_head = torch.zeros(head.shape, device=head.device) if ctx.needs_input_grad[1] else None
        for number, (part, target, weight, into) in enumerate(
            zip(*(torch.split(t, ctx.rows) for t in (hidden, targets, slope, into_hidden)), strict=True)
        ):
            # d logprob / d logits = onehot - p
            error = kept[number] if kept else _logits(part, head, ctx.temperature).softmax(dim=-1)
            error = error.mul_(-weight[:, None]).scatter_add_(1, target[:, None], weight[:, None]).to(head.dtype)
            torch.mm(error, head, out=into)
            if into_head is not None:
                into_head += error.t() @ part
        return into_hidden, None if into_head is None else into_head.to(head.dtype), None, None


def chosen_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Scores:
    """hidden (T, width) predicts targets (T,) through head (V, width)."""
    logprobs, entropy = _ChosenLogprobs.apply(hidden, head, targets, temperature)  # type: ignore[no-untyped-call]
    return Scores(logprobs, entropy)
