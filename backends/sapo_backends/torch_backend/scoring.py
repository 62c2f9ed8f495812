"""Log-probabilities of given tokens without ever holding all logits.

The forward pass goes through the unembedding in chunks of rows and keeps two numbers a row; the backward pass makes
each chunk's probabilities again, unless all of them are small enough to keep. For a vocabulary of 151k this is the
difference between gigabytes and megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sapo_backends import hardware

BLOCK_ELEMENTS = 1 << 18
"""Logits that are exponentiated and summed at once, 1 MiB in float32: they stay in a core's cache over all passes."""


@dataclass(frozen=True, slots=True)
class Scores:
    """logprobs (T,) float32, differentiable; entropy (T,) of the distribution each token was drawn from."""

    logprobs: Tensor
    entropy: Tensor


class _Blocks:
    """Goes through one chunk's logits in blocks of rows, always in the same memory: what is as large as a chunk would be
    given back to the system and paid for again with page faults."""

    def __init__(self, head: Tensor, rows: int, temperature: float) -> None:
        self._head, self._temperature = head, temperature
        self._chunk = head.new_empty(rows, head.shape[0])  # in the compute type
        # Elsewhere a block costs launches of kernels, and there is no such cache to stay in.
        self.rows = max(1, min(BLOCK_ELEMENTS // head.shape[0], rows)) if head.device.type == "cpu" else rows
        self.wide = torch.promote_types(head.dtype, torch.float32)
        self._logits = head.new_empty(self.rows, head.shape[0], dtype=self.wide)

    def of(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """A block's place in the chunk and its logits in float32 at least, which the next block overwrites."""
        chunk = self.chunk(hidden)
        torch.mm(hidden, self._head.t(), out=chunk)
        for place in torch.split(chunk, self.rows):
            logits = self._logits[: len(place)].copy_(place)
            yield place, logits if self._temperature == 1.0 else logits.div_(self._temperature)

    def chunk(self, hidden: Tensor) -> Tensor:
        """The memory of a chunk of so many rows, as the blocks' places left it."""
        return self._chunk[: len(hidden)]


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        rows = max(1, min(hardware.CHUNK // head.shape[0], len(hidden)))
        blocks = _Blocks(head, rows, temperature)
        chosen, entropy, kept = [], [], []
        keep = ctx.needs_input_grad[0] and hidden.shape[0] * head.shape[0] <= hardware.KEPT
        scratch = head.new_empty(blocks.rows, head.shape[0], dtype=blocks.wide)
        for part, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            for (_, logits), target in zip(blocks.of(part), torch.split(wanted, blocks.rows), strict=True):
                probabilities = torch.empty_like(logits) if keep else scratch[: len(logits)]
                torch.softmax(logits, dim=-1, out=probabilities)
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
        blocks = _Blocks(head, ctx.rows, ctx.temperature)
        known = iter(kept)
        for part, wanted, weights, into in zip(
            *(torch.split(t, ctx.rows) for t in (hidden, targets, slope, into_hidden)), strict=True
        ):
            error = blocks.chunk(part)
            found = zip(torch.split(error, blocks.rows), known, strict=False) if kept else blocks.of(part)
            for (place, scores), target, weight in zip(
                found, torch.split(wanted, blocks.rows), torch.split(weights, blocks.rows), strict=True
            ):
                probabilities = scores if kept else torch.softmax(scores, dim=-1, out=scores)
                # d logprob / d logits = onehot - p, rounded once
                torch.mul(probabilities, -weight[:, None], out=place)
                place.scatter_add_(1, target[:, None], weight[:, None].to(place.dtype))
            torch.mm(error, head, out=into)
            if into_head is not None:
                into_head += error.t() @ part
        return into_hidden, None if into_head is None else into_head.to(head.dtype), None, None


def chosen_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Scores:
    """hidden (T, width) predicts targets (T,) through head (V, width)."""
    logprobs, entropy = _ChosenLogprobs.apply(hidden, head, targets, temperature)  # type: ignore[no-untyped-call]
    return Scores(logprobs, entropy)
