"""Frozen projections with their LoRA adapters as single operations with hand-written backward passes.

Left to autograd, the adapter's sums and their gradients are each another tensor as wide as the layer, and the MLP, the
widest part of a decoder, keeps four of them a token. On a CPU the passes over these tensors and the page faults for
their memory cost as much as the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Frozen = tuple[Tensor, Tensor | None]
"""Weight and bias of a projection, not trained."""


def adapted_linear(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, down: Tensor, *ups: Tensor) -> Tensor:
    """W x + b + scale * B A x: x (N, in) -> (N, out). down: A of all parts (parts * rank, in); ups: B of each part."""
    y: Tensor = _AdaptedLinear.apply(x, weight, bias, scale, down, *ups)  # type: ignore[no-untyped-call]
    return y


def adapted_mlp(x: Tensor, residual: Tensor, gate_up: Frozen, down: Frozen, scale: float, *adapter: Tensor) -> Tensor:
    """residual + down(silu(gate(x)) * up(x)), all (N, hidden), each projection with its adapter.

    adapter: A of gate and up together (2 rank, hidden), B of gate, B of up, A and B of down.
    """
    y: Tensor = _AdaptedMlp.apply(x, residual, gate_up, down, scale, *adapter)  # type: ignore[no-untyped-call]
    return y


class _AdaptedLinear(torch.autograd.Function):
    """A frozen linear layer with its adapter; what the adapter adds goes into the layer's own output.

    As separate operations the sum and the gradients of its parts are each another tensor as wide as the layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, *adapter: Tensor) -> Tensor:
        down, *ups = adapter
        y = F.linear(x, weight, bias)
        low = F.linear(x, down).mul_(scale)  # (N, parts * rank)
        for low_of, up, part in zip(low.chunk(len(ups), dim=1), ups, _parts(y, ups), strict=True):
            part.add_(F.linear(low_of, up))
        ctx.save_for_backward(x, weight, low, down, *ups)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, low, down, *ups = ctx.saved_tensors
        slopes = _parts(gradients[0], ups)
        into_ups = [slope.t() @ low_of for slope, low_of in zip(slopes, low.chunk(len(ups), dim=1), strict=True)]
        into_low = torch.cat([slope @ up for slope, up in zip(slopes, ups, strict=True)], dim=1).mul_(ctx.scale)
        into_x = (gradients[0] @ weight).addmm_(into_low, down) if ctx.needs_input_grad[0] else None
        return into_x, None, None, None, into_low.t() @ x, *into_ups


def _parts(y: Tensor, ups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of y that each part of the adapter adds to."""
    return torch.split(y, [len(up) for up in ups], dim=1)


class _AdaptedMlp(torch.autograd.Function):
    """Keeps gate and up, each a tensor of its own (two of half the width are allocated faster than one, and are
    contiguous), and makes what comes of them again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, gate_up: Frozen, down: Frozen, scale: float, *adapter: Tensor
    ) -> Tensor:
        a_both, b_gate, b_up, a_down, b_down = adapter
        low_gate, low_up = (low.contiguous() for low in F.linear(x, a_both).mul_(scale).chunk(2, dim=1))
        (w_gate, w_up), (c_gate, c_up) = _halves(gate_up)
        gate = F.linear(x, w_gate, c_gate).addmm_(low_gate, b_gate.t())
        up = F.linear(x, w_up, c_up).addmm_(low_up, b_up.t())
        mixed = F.silu(gate).mul_(up)
        low_down = F.linear(mixed, a_down).mul_(scale)
        y = torch.addmm(residual, mixed, down[0].t()).addmm_(low_down, b_down.t())
        if down[1] is not None:
            y.add_(down[1])
        ctx.save_for_backward(x, gate, up, low_gate, low_up, low_down, *adapter)
        ctx.frozen, ctx.scale = (w_gate, w_up, down[0]), scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, low_gate, low_up, low_down, a_both, b_gate, b_up, a_down, b_down = ctx.saved_tensors
        w_gate, w_up, w_down = ctx.frozen
        (slope,) = gradients
        opened = F.silu(gate)
        mixed = opened * up
        into_low_down = (slope @ b_down).mul_(ctx.scale)
        into_adapter = [into_low_down.t() @ mixed, slope.t() @ low_down]
        into_mixed = (slope @ w_down).addmm_(into_low_down, a_down)
        into_up = opened.mul_(into_mixed)
        into_gate = torch.ops.aten.silu_backward.grad_input(into_mixed.mul_(up), gate, grad_input=mixed)
        into_low = torch.cat((into_gate @ b_gate, into_up @ b_up), dim=1).mul_(ctx.scale)
        into_adapter = [into_low.t() @ x, into_gate.t() @ low_gate, into_up.t() @ low_up, *into_adapter]
        into_x = None
        if ctx.needs_input_grad[0]:
            into_x = (into_gate @ w_gate).addmm_(into_up, w_up).addmm_(into_low, a_both)
        return into_x, slope, None, None, None, *into_adapter


def _halves(of: Frozen) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """The weights and biases of two projections that lie in one."""
    weight, bias = of
    return weight.chunk(2), (None, None) if bias is None else bias.chunk(2)
