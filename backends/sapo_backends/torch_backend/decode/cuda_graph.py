"""A decode step captured once and replayed: on a GPU a step of a small model is hundreds of kernels of a few
microseconds each, and launching them takes longer than they do.

What changes from step to step lies in tensors that keep their place (tokens, positions, the slot that is written, what
masks the slots behind it); what does not is captured with its addresses. Rows that leave mean a new capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sapo_backends.torch_backend.runtime import fall_back, is_left_out

Compute = Callable[["StepInputs"], Tensor]
CHECKED_STEPS = 4
"""Replayed steps that are compared with plain ones the first time a device is used."""
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
    """Whether decode steps are captured; shared by every session of a process.

    Nothing is trusted: the first replay of every capture and the first steps on each device are compared with plain
    ones. failed: devices on which something went wrong, which decode plainly from then on, with a line in the log.
    checked: replayed steps that were compared, by device.
    """

    failed: set[torch.device] = field(default_factory=set)
    checked: dict[torch.device, int] = field(default_factory=dict)

    def wanted(self, device: torch.device) -> bool:
        """Whether decode steps on that device should be captured."""
        return device.type == "cuda" and device not in self.failed and not is_left_out("cuda-graph")

    def capture(self, inputs: StepInputs, compute: Compute) -> CapturedStep | None:
        """The step, computed once and captured; None where that does not work."""
        device = inputs.tokens.device
        try:
            found = CapturedStep(inputs, compute)
        except RuntimeError as error:
            self._give_up(device, f"capture failed: {error}")
            return None
        return found if self._agree(device, found.logits, found.expected) else None

    def replay(self, captured: CapturedStep, tokens: Tensor, plain: Callable[[], Tensor]) -> Tensor | None:
        """The logits (rows, V) after tokens (rows,); None when they differ from those of `plain`, which computes the
        same step and is called for the first CHECKED_STEPS on each device only."""
        device = tokens.device
        checks = self.checked.get(device, 0) < CHECKED_STEPS
        expected = plain().clone() if checks else None
        logits = captured.step(tokens)
        if expected is None:
            return logits
        self.checked[device] = self.checked.get(device, 0) + 1
        return logits if self._agree(device, logits, expected) else None

    def _agree(self, device: torch.device, logits: Tensor, expected: Tensor) -> bool:
        same = torch.allclose(expected, logits, rtol=TOLERANCE, atol=TOLERANCE)
        if not same:
            self._give_up(device, "a replayed step differs from a plain one")
        return same

    def _give_up(self, device: torch.device, reason: str) -> None:
        self.failed.add(device)
        fall_back("cuda-graph", f"{device}: {reason}")


CAPTURE = GraphCapture()


class CapturedStep:
    """logits: of the last step; overwritten by the next. expected: of the first step, computed plainly."""

    def __init__(self, inputs: StepInputs, compute: Compute) -> None:
        self._inputs = inputs
        with torch.cuda.device(inputs.tokens.device):  # a graph is captured on the current device
            stream, now = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(now)
            with torch.cuda.stream(stream):  # what libraries set up on first use may not be captured
                self.expected = compute(inputs).clone()
            now.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            # torch up to 2.13 leaves a failed capture without setting the stream back
            with torch.cuda.stream(now), torch.cuda.graph(self._graph):
                self.logits = compute(inputs)
            self.logits.fill_(float("nan"))  # a replay that does nothing must not pass for one that works
            self._graph.replay()  # capture computes nothing; writing a slot twice does no harm

    def step(self, tokens: Tensor) -> Tensor:
        """The logits (rows, V) after tokens (rows,)."""
        self._inputs.advance(tokens)
        with torch.cuda.device(tokens.device):  # it is replayed on the current device's stream
            self._graph.replay()
        return self.logits
