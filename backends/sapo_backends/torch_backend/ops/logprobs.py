"""Log-probabilities of given tokens without ever holding all logits.

The forward pass goes through the unembedding in chunks of rows and keeps two numbers a row and, where gradients are
needed and the unembedding is frozen, the gradient of its log-probability. Where it is trained the backward pass makes
each chunk's probabilities again, unless all of them are small enough to keep. For a vocabulary of 151k this is the
difference between gigabytes and megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sapo_backends.common import round_memory
from sapo_backends.torch_backend.ops.fused_ops import softcapped

BLOCK_ELEMENTS = 1 << 18
"""Logits that are exponentiated and summed at once, 1 MiB in float32: they stay in a core's cache over all passes."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """logprobs (T,) float32, differentiable; entropy (T,) of the distribution each token was sampled from."""

    logprobs: Tensor
    entropy: Tensor


class _Blocks:
    """Goes through one chunk's logits in blocks of rows, always in the same memory: what is as large as a chunk would
    be given back to the system and paid for again with page faults."""

    def __init__(self, head: Tensor, rows: int, temperature: float, softcap: float) -> None:
        self._head, self._temperature, self._softcap = head, temperature, softcap
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
            logits = softcapped(self._logits[: len(place)].copy_(place), self._softcap)
            yield place, logits if self._temperature == 1.0 else logits.div_(self._temperature)

    def slope(self, logits: Tensor) -> Tensor | None:
        """d logits / d what the unembedding gave (rows, V), before division by the temperature; None where it is 1."""
        if self._softcap == 0.0:
            return None
        return (logits * (self._temperature / self._softcap)).square_().neg_().add_(1.0)

    def chunk(self, hidden: Tensor) -> Tensor:
        """The memory of a chunk of so many rows, as the blocks' places left it."""
        return self._chunk[: len(hidden)]


class _ChosenLogprobs(torch.autograd.Function):
    """A token's log-probability depends on its own hidden state alone, so where the head is frozen the forward pass
    already makes the gradient of each, one row of `jacobian`, while it has the probabilities; the backward pass only
    weighs the rows. A trained head needs all probabilities again, each times its token's weight."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, softcap: float
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, min(round_memory.CHUNK // head.shape[0], len(hidden)))
        blocks = _Blocks(head, rows, temperature, softcap)
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        jacobian = torch.empty_like(hidden) if needs_hidden and not needs_head else hidden.new_empty(0, hidden.shape[1])
        chosen, entropy, probabilities_kept = [], [], []
        few = hidden.shape[0] * head.shape[0] <= round_memory.KEPT_PROBABILITIES
        keep = needs_head and few and softcap == 0.0
        scratch = head.new_empty(blocks.rows, head.shape[0], dtype=blocks.wide)
        for number, (part, wanted) in enumerate(
            zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
        ):
            for (place, logits), target in zip(blocks.of(part), torch.split(wanted, blocks.rows), strict=True):
                probabilities = torch.empty_like(logits) if keep else scratch[: len(logits)]
                torch.softmax(logits, dim=-1, out=probabilities)
                # The largest probability is never too small to take its logarithm.
                total = logits.amax(dim=-1) - probabilities.amax(dim=-1).log()
                chosen.append(logits.gather(1, target[:, None])[:, 0] - total)
                entropy.append(total - torch.linalg.vecdot(probabilities, logits))
                if keep:
                    probabilities_kept.append(probabilities)
                if len(jacobian):
                    ones = probabilities.new_ones(len(target))
                    _grad_logits(probabilities, target, ones, place, blocks.slope(logits))
            if len(jacobian):
                torch.mm(blocks.chunk(part), head, out=jacobian[number * rows :][: len(part)])
        ctx.save_for_backward(jacobian if len(jacobian) else hidden, head, targets, *probabilities_kept)
        ctx.temperature, ctx.rows, ctx.softcap = temperature, rows, softcap
        entropies = torch.cat(entropy)
        ctx.mark_non_differentiable(entropies)
        return torch.cat(chosen), entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, head, targets, *probabilities_kept = ctx.saved_tensors
        grad_out = gradients[0] / ctx.temperature  # (T,)
        if not ctx.needs_input_grad[1]:
            return hidden * grad_out[:, None].to(hidden.dtype), None, None, None, None
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros(head.shape, device=head.device)
        blocks = _Blocks(head, ctx.rows, ctx.temperature, ctx.softcap)
        known = iter(probabilities_kept)
        for part, wanted, weights, grad_part in zip(
            *(torch.split(t, ctx.rows) for t in (hidden, targets, grad_out, grad_hidden)), strict=True
        ):
            grad_logits = blocks.chunk(part)
            found = (
                zip(torch.split(grad_logits, blocks.rows), known, strict=False)
                if probabilities_kept
                else blocks.of(part)
            )
            for (place, scores), target, weight in zip(
                found, torch.split(wanted, blocks.rows), torch.split(weights, blocks.rows), strict=True
            ):
                slope = None if probabilities_kept else blocks.slope(scores)
                probabilities = scores if probabilities_kept else torch.softmax(scores, dim=-1, out=scores)
                _grad_logits(probabilities, target, weight, place, slope)
            torch.mm(grad_logits, head, out=grad_part)
            grad_head += grad_logits.t() @ part
        return grad_hidden, grad_head.to(head.dtype), None, None, None


def _grad_logits(
    probabilities: Tensor, target: Tensor, weight: Tensor, out: Tensor, slope: Tensor | None = None
) -> None:
    """weight (rows,) times d logprob / d logits = onehot - p, rounded once into out (rows, V); times slope, if any."""
    if slope is not None:
        exact = (probabilities * -weight[:, None]).scatter_add_(1, target[:, None], weight[:, None])
        out.copy_(exact.mul_(slope))
        return
    torch.mul(probabilities, -weight[:, None], out=out)
    out.scatter_add_(1, target[:, None], weight[:, None].to(out.dtype))


def chosen_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, softcap: float = 0.0
) -> TokenLogprobs:
    """hidden (T, width) predicts targets (T,) through head (V, width) and softcap tanh(x / softcap), if it is not 0."""
    logprobs, entropy = _ChosenLogprobs.apply(hidden, head, targets, temperature, softcap)  # type: ignore[no-untyped-call]
    return TokenLogprobs(logprobs, entropy)
