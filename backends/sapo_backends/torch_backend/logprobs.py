"""Log-probabilities of given tokens without ever holding all logits.

The forward pass goes through the unembedding in chunks of rows and keeps two numbers per row and, if gradients are
needed and the unembedding is frozen, the gradient of the row's log-probability. If it is trained, the backward pass
recomputes each chunk's probabilities, unless all of them are small enough to keep. For a vocabulary of 151k this is
the difference between gigabytes and megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sapo_backends.common import round_memory
from sapo_backends.torch_backend import paths
from sapo_backends.torch_backend.fused_ops import apply_softcap

BLOCK_ELEMENTS = 1 << 18
"""Logits that are exponentiated and summed at once, 1 MiB in float32: they stay in a core's cache during all passes."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """logprobs (T,) float32, differentiable; entropy (T,) of the distribution each token was sampled from."""

    logprobs: Tensor
    entropy: Tensor


class _Chunks:
    """Goes through the unembedding's output a chunk of rows at a time, always in the same memory: freshly allocated
    chunks would go back to the system each time and cost page faults again. Compiled kernels process a chunk row by
    row; without them it is processed in blocks of rows."""

    def __init__(self, head: Tensor, rows: int, temperature: float, softcap: float) -> None:
        self._head, self._temperature, self._softcap = head, temperature, softcap
        self._kernels = paths.vocabulary_kernels(head, softcap)
        self._memory = head.new_empty(rows, head.shape[0])  # in the compute type
        # On other devices a block costs kernel launches, and there is no such cache to stay in.
        self.rows = max(1, min(BLOCK_ELEMENTS // head.shape[0], rows)) if head.device.type == "cpu" else rows
        wide = torch.promote_types(head.dtype, torch.float32)
        self._logits = head.new_empty(self.rows, head.shape[0], dtype=wide)

    def logprobs(
        self, hidden: Tensor, targets: Tensor, weights: Tensor | None, keep: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of targets (rows,) and entropies (rows,); if weights (rows,) are given, the chunk's memory
        then holds the gradients. keep: receives the probabilities."""
        if self._kernels is not None and keep is None:
            return self._kernels.chosen_logprobs(self._outputs(hidden), self._temperature, targets, weights)
        chosen, entropy, scratch = [], [], torch.empty_like(self._logits)
        for (place, logits), some in zip(self._blocks(hidden), self.split(targets), strict=True):
            probabilities = scratch[: len(logits)] if keep is None else torch.empty_like(logits)
            torch.softmax(logits, dim=-1, out=probabilities)
            # The largest probability is never too small for its logarithm.
            total = logits.amax(dim=-1) - probabilities.amax(dim=-1).log()
            chosen.append(logits.gather(1, some[:, None])[:, 0] - total)
            entropy.append(total - torch.linalg.vecdot(probabilities, logits))
            if keep is not None:
                keep.append(probabilities)
            if weights is not None:
                _grad_logits(probabilities, some, weights[: len(some)], place, self._derivative(logits))
                weights = weights[len(some) :]
        return torch.cat(chosen), torch.cat(entropy)

    def gradients(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """(rows, V) weights (rows,) times d log-probability / d logits, in the chunk's memory."""
        if self._kernels is not None:
            self._kernels.chosen_logprobs(self._outputs(hidden), self._temperature, targets, weights)
            return self.memory(hidden)
        for (place, logits), some, given in zip(
            self._blocks(hidden), self.split(targets), self.split(weights), strict=True
        ):
            derivative = self._derivative(logits)
            _grad_logits(torch.softmax(logits, dim=-1, out=logits), some, given, place, derivative)
        return self.memory(hidden)

    def gradients_of(self, probabilities: Iterator[Tensor], targets: Tensor, weights: Tensor) -> Tensor:
        """The same from kept probabilities, block by block."""
        memory = self.memory(targets)
        for place, some, given in zip(*map(self.split, (memory, targets, weights)), strict=True):
            _grad_logits(next(probabilities), some, given, place)
        return memory

    def memory(self, hidden: Tensor) -> Tensor:
        """The memory of this many rows of a chunk, as it was left."""
        return self._memory[: len(hidden)]

    def split(self, of_rows: Tensor) -> tuple[Tensor, ...]:
        """Split rows into blocks."""
        return torch.split(of_rows, self.rows)

    def _outputs(self, hidden: Tensor) -> Tensor:
        return torch.mm(hidden, self._head.t(), out=self.memory(hidden))

    def _blocks(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each block's place in the chunk, and its logits in float32 or wider, which the next block overwrites."""
        for place in self.split(self._outputs(hidden)):
            logits = apply_softcap(self._logits[: len(place)].copy_(place), self._softcap)
            yield place, logits if self._temperature == 1.0 else logits.div_(self._temperature)

    def _derivative(self, logits: Tensor) -> Tensor | None:
        """d logits / d unembedding output (rows, V), before division by the temperature; None if it is 1."""
        if self._softcap == 0.0:
            return None
        return (logits * (self._temperature / self._softcap)).square_().neg_().add_(1.0)


class _ChosenLogprobs(torch.autograd.Function):
    """A token's log-probability depends only on its own hidden state. So if the head is frozen, the forward pass
    computes the gradient of each, one row of `jacobian`, while it has the probabilities; the backward pass only
    weights the rows. A trained head needs all probabilities again, each times its token's weight."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, softcap: float
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, min(round_memory.CHUNK // head.shape[0], len(hidden)))
        chunks = _Chunks(head, rows, temperature, softcap)
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        jacobian = torch.empty_like(hidden) if needs_hidden and not needs_head else hidden.new_empty(0, hidden.shape[1])
        few = hidden.shape[0] * head.shape[0] <= round_memory.KEPT_PROBABILITIES
        probabilities = list[Tensor]() if needs_head and few and softcap == 0.0 else None
        results = []
        for number, (part, wanted) in enumerate(
            zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
        ):
            ones = torch.ones(len(part), device=head.device) if len(jacobian) else None
            results.append(chunks.logprobs(part, wanted, ones, probabilities))
            if len(jacobian):
                torch.mm(chunks.memory(part), head, out=jacobian[number * rows :][: len(part)])
        ctx.save_for_backward(jacobian if len(jacobian) else hidden, head, targets, *(probabilities or ()))
        ctx.temperature, ctx.rows, ctx.softcap = temperature, rows, softcap
        chosen, entropies = map(torch.cat, zip(*results, strict=True))
        ctx.mark_non_differentiable(entropies)
        return chosen, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, head, targets, *probabilities = ctx.saved_tensors
        grad_out = gradients[0] / ctx.temperature  # (T,)
        if not ctx.needs_input_grad[1]:
            return hidden * grad_out[:, None].to(hidden.dtype), None, None, None, None
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros(head.shape, device=head.device)
        chunks, known = _Chunks(head, ctx.rows, ctx.temperature, ctx.softcap), iter(probabilities)
        for part, wanted, weights, grad_part in zip(
            *(torch.split(t, ctx.rows) for t in (hidden, targets, grad_out, grad_hidden)), strict=True
        ):
            grad_logits = (
                chunks.gradients_of(known, wanted, weights)
                if probabilities
                else chunks.gradients(part, wanted, weights)
            )
            torch.mm(grad_logits, head, out=grad_part)
            grad_head += grad_logits.t() @ part
        return grad_hidden, grad_head.to(head.dtype), None, None, None


def _grad_logits(
    probabilities: Tensor, target: Tensor, weight: Tensor, out: Tensor, derivative: Tensor | None = None
) -> None:
    """weight (rows,) times d logprob / d logits = onehot - p, rounded once into out (rows, V); times derivative, if
    any."""
    if derivative is not None:
        exact = (probabilities * -weight[:, None]).scatter_add_(1, target[:, None], weight[:, None])
        out.copy_(exact.mul_(derivative))
        return
    torch.mul(probabilities, -weight[:, None], out=out)
    out.scatter_add_(1, target[:, None], weight[:, None].to(out.dtype))


def chosen_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, softcap: float = 0.0
) -> TokenLogprobs:
    """hidden (T, width) predicts targets (T,) through head (V, width) and softcap tanh(x / softcap), if softcap is not
    0."""
    logprobs, entropy = _ChosenLogprobs.apply(hidden, head, targets, temperature, softcap)  # type: ignore[no-untyped-call]
    return TokenLogprobs(logprobs, entropy)
