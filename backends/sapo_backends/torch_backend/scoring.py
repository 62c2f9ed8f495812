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


def _log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    """(rows, V) float32."""
    logits = torch.nn.functional.linear(hidden, head)
    return torch.log_softmax(logits if temperature == 1.0 else logits.float() / temperature, -1, dtype=torch.float32)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        rows = max(1, CHUNK_ELEMENTS // head.shape[0])
        chosen, entropy, kept = [], [], []
        keep = hidden.shape[0] * head.shape[0] <= KEEP_ELEMENTS
        for part, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            logprobs = _log_softmax(part, head, temperature)  # (rows, V)
            chosen.append(logprobs.gather(1, target[:, None])[:, 0])
            probabilities = logprobs.exp()
            entropy.append(-torch.linalg.vecdot(probabilities, logprobs))
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
            error = kept[number] if kept else _log_softmax(part, head, ctx.temperature).exp_()
            error = error.mul(-weight[:, None])
            error = error.scatter_add_(1, target[:, None], weight[:, None]).to(head.dtype)
            torch.mm(error, head, out=into)
            if into_head is not None:
                into_head += error.t() @ part
        return into_hidden, None if into_head is None else into_head.to(head.dtype), None, None


def chosen_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Scores:
    """hidden (T, width) predicts targets (T,) through head (V, width)."""
    logprobs, entropy = _ChosenLogprobs.apply(hidden, head, targets, temperature)  # type: ignore[no-untyped-call]
    return Scores(logprobs, entropy)
