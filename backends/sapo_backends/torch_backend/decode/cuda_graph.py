"""A decode step recorded once and replayed: on a card a step of a small model is hundreds of kernels of a few microseconds
each, and launching them takes longer than they do.

What changes from step to step lies in tensors that keep their place (tokens, positions, the slot that is written, what
hides the slots behind it); what does not is recorded with its addresses. Rows that leave mean a new recording. The first
replay is compared with the same step computed plainly, and a card, driver or torch on which recording fails, or gives something
else, decodes plainly from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Compute = Callable[["Inputs"], Tensor]
TOLERANCE = 1e-2
"""Of logits; the kernels are the same, so that they usually agree to the last bit."""


@dataclass
class Inputs:
    """tokens (rows,), positions (places,), slot (1,) that is written, hidden (slots,): 0 up to it, then -inf."""

    tokens: Tensor
    positions: Tensor
    slot: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor, used: int, slots: int, kind: torch.dtype) -> Inputs:
        """For the step after `used` filled slots."""
        hidden = torch.full((slots,), float("-inf"), dtype=kind, device=tokens.device)
        hidden[: used + 1] = 0.0
        return cls(tokens.clone(), positions.clone(), torch.tensor([used], device=tokens.device), hidden)

    def advance(self, tokens: Tensor) -> None:
        """The next step, in place."""
        self.tokens.copy_(tokens)
        self.positions += 1
        self.slot += 1
        self.hidden.index_fill_(0, self.slot, 0.0)


@dataclass
class Recorder:
    """Whether steps can be recorded here; asked and told by every session of a process."""

    fails: bool = False

    def wanted(self, device: torch.device) -> bool:
        return device.type == "cuda" and not self.fails

    def record(self, inputs: Inputs, compute: Compute) -> Recorded | None:
        """The step, computed once and recorded; None where that does not work."""
        try:
            found = Recorded(inputs, compute)
        except RuntimeError:
            self.fails = True
            return None
        if not torch.allclose(found.expected, found.logits, rtol=TOLERANCE, atol=TOLERANCE):
            self.fails = True
            return None
        return found


RECORDER = Recorder()


class Recorded:
    """logits: of the last step; overwritten by the next."""

    def __init__(self, inputs: Inputs, compute: Compute) -> None:
        self._inputs = inputs
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(now)
        with torch.cuda.stream(stream):  # what libraries set up on first use may not be recorded
            self.expected = compute(inputs)
        now.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.logits = compute(inputs)
        self._graph.replay()  # recording computes nothing; writing a slot twice does no harm

    def step(self, tokens: Tensor) -> Tensor:
        """The logits after these tokens, one a row."""
        self._inputs.advance(tokens)
        self._graph.replay()
        return self.logits
