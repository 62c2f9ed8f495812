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

from sapo_backends.torch_backend.ops.four_bit import Weight, dense
from sapo_backends.torch_backend.ops.fused_ops import gated, gated_backward

Frozen = tuple[Weight, Tensor | None]
"""Weight and bias of a projection, not trained."""


def adapted_linear(
    x: Tensor, weight: Weight, bias: Tensor | None, scale: float, down: Tensor, *lora_bs: Tensor
) -> Tensor:
    """W x + b + scale * B A x: x (N, in) -> (N, out). down: A of all parts (parts * rank, in); lora_bs: B of each
    part."""
    y: Tensor = _AdaptedLinear.apply(x, weight, bias, scale, down, *lora_bs)  # type: ignore[no-untyped-call]
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
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None, scale: float, *adapter: Tensor) -> Tensor:
        down, *lora_bs = adapter
        y = F.linear(x, dense(weight), bias)
        low = F.linear(x, down).mul_(scale)  # (N, parts * rank)
        for low_of, up, part in zip(low.chunk(len(lora_bs), dim=1), lora_bs, _parts(y, lora_bs), strict=True):
            part.add_(F.linear(low_of, up))
        ctx.save_for_backward(x, low, down, *lora_bs)
        ctx.weight, ctx.scale = weight, scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, low, down, *lora_bs = ctx.saved_tensors
        grads = _parts(gradients[0], lora_bs)
        grad_ups = [
            grad_out.t() @ low_of for grad_out, low_of in zip(grads, low.chunk(len(lora_bs), dim=1), strict=True)
        ]
        grad_low = torch.cat([grad_out @ up for grad_out, up in zip(grads, lora_bs, strict=True)], dim=1).mul_(
            ctx.scale
        )
        grad_x = (gradients[0] @ dense(ctx.weight)).addmm_(grad_low, down) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None, grad_low.t() @ x, *grad_ups


def _parts(y: Tensor, lora_bs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of y that each part of the adapter adds to."""
    return torch.split(y, [len(up) for up in lora_bs], dim=1)


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
        del w_gate, w_up
        activated = gated(gate, up)
        low_down = F.linear(activated, a_down).mul_(scale)
        y = torch.addmm(residual, activated, dense(down[0]).t()).addmm_(low_down, b_down.t())
        if down[1] is not None:
            y.add_(down[1])
        ctx.save_for_backward(x, gate, up, low_gate, low_up, low_down, *adapter)
        ctx.frozen, ctx.scale = (gate_up, down[0]), scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, low_gate, low_up, low_down, a_both, b_gate, b_up, a_down, b_down = ctx.saved_tensors
        gate_up, w_down = ctx.frozen
        (grad_out,) = gradients
        silu_gate = F.silu(gate)
        activated = silu_gate * up
        grad_low_down = (grad_out @ b_down).mul_(ctx.scale)
        grad_adapter = [grad_low_down.t() @ activated, grad_out.t() @ low_down]
        grad_activated = (grad_out @ dense(w_down)).addmm_(grad_low_down, a_down)
        grad_gate, grad_up = activated, silu_gate
        gated_backward(gate, up, silu_gate, grad_activated, grad_gate, grad_up)
        grad_low = torch.cat((grad_gate @ b_gate, grad_up @ b_up), dim=1).mul_(ctx.scale)
        grad_adapter = [grad_low.t() @ x, grad_gate.t() @ low_gate, grad_up.t() @ low_up, *grad_adapter]
        grad_x = None
        if ctx.needs_input_grad[0]:
            (w_gate, w_up), _ = _halves(gate_up)
            grad_x = (grad_gate @ w_gate).addmm_(grad_up, w_up).addmm_(grad_low, a_both)
        return grad_x, grad_out, None, None, None, *grad_adapter


def _halves(of: Frozen) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """The weights and biases of two projections that lie in one."""
    weight, bias = of
    return dense(weight).chunk(2), (None, None) if bias is None else bias.chunk(2)
