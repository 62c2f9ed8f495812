"""A decode step captured once and replayed: on a GPU a step of a small model is hundreds of kernels of a few
microseconds each, and launching them takes longer than they do.

What changes from step to step lies in tensors that keep their place (tokens, positions, the slot that is written, what
masks the slots behind it); what does not is captured with its addresses. Rows that leave mean a new capture. The first
replay is compared with the same step computed plainly, and a GPU, driver or torch on which capture failed, or gives
something else, decodes plainly from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sapo_backends.torch_backend.runtime.fallbacks import is_left_out

Compute = Callable[["StepInputs"], Tensor]
TOLERANCE = 1e-2
"""Of logits; the kernels are the same, so that they usually agree to the last bit."""


@dataclass
class StepInputs:
    """tokens (rows,), positions (places,), slot (1,) that is written, hidden (slots,): 0 up to it, then -inf."""

    tokens: Tensor
    positions: Tensor
    slot: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor, used: int, slots: int, kind: torch.dtype) -> StepInputs:
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
class GraphCapture:
    """Whether steps can be captured here; shared by every session of a process."""

    failed: bool = False

    def wanted(self, device: torch.device) -> bool:
        """Whether decode steps on that device should be captured."""
        return device.type == "cuda" and not self.failed and not is_left_out("cuda-graph")

    def capture(self, inputs: StepInputs, compute: Compute) -> CapturedStep | None:
        """The step, computed once and captured; None where that does not work."""
        try:
            found = CapturedStep(inputs, compute)
        except RuntimeError:
            self.failed = True
            return None
        if not torch.allclose(found.expected, found.logits, rtol=TOLERANCE, atol=TOLERANCE):
            self.failed = True
            return None
        return found


CAPTURE = GraphCapture()


class CapturedStep:
    """logits: of the last step; overwritten by the next."""

    def __init__(self, inputs: StepInputs, compute: Compute) -> None:
        self._inputs = inputs
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(now)
        with torch.cuda.stream(stream):  # what libraries set up on first use may not be captured
            self.expected = compute(inputs)
        now.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.logits = compute(inputs)
        self._graph.replay()  # capture computes nothing; writing a slot twice does no harm

    def step(self, tokens: Tensor) -> Tensor:
        """The logits after these tokens, one a row."""
        self._inputs.advance(tokens)
        self._graph.replay()
        return self.logits
