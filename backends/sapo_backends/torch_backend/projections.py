"""Frozen projections: in 4 bits (NF4 of QLoRA), and with their LoRA adapters as single operations with hand-written
gradients."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.errors import BackendUnavailable
from sapo_backends.packages import install_command
from sapo_backends.torch_backend.fused_ops import gated_backward, silu_and_mul

# Frozen weights in 4 bits: NF4 of QLoRA (arXiv 2305.14314, appendix E), one scale per 64 weights, 4.5 bits per weight.
#
# bitsandbytes dequantises them for each product, on processors and GPUs. Quantising is done here: the result equals
# that of bitsandbytes bit for bit, in half the time, a piece of a file at a time.

BLOCK = 64
"""Weights that share one scale."""
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The values of the 16 codes, to be multiplied by the scale."""

UPGRADE = "pip install -U bitsandbytes"


@cache
def require_bitsandbytes(device: torch.device) -> None:
    """Raise BackendUnavailable unless bitsandbytes is installed and works on the device."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it complains about kernels that are not used here
    try:
        import bitsandbytes  # noqa: F401 - registers its operations with torch
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        raise BackendUnavailable(
            f"4-bit weights need bitsandbytes ({error}).", install_command("bitsandbytes")
        ) from error
    values = torch.tensor(LEVELS, device=device).repeat(4)
    try:  # without a library for the GPU, bitsandbytes raises only here
        codes, scales = quantise_nf4(values)
        weight = dequantise_nf4(codes.view(1, -1), scales, torch.empty(0, device=device))
    except (AttributeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise BackendUnavailable(f"bitsandbytes does not work on {device} ({reason}).", UPGRADE) from error
    if not torch.allclose(weight[0], values, atol=1e-5):
        raise BackendUnavailable("This version of bitsandbytes computes something else.", UPGRADE)


def quantise_nf4(values: Tensor) -> tuple[Tensor, Tensor]:
    """values (n,), n a multiple of BLOCK -> codes (n / 2,), the first of each two in the upper bits, and scales (n /
    BLOCK,)."""
    blocks = values.float().view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    levels = torch.tensor(LEVELS, device=values.device)
    edges = (levels[1:] + levels[:-1]) / 2
    places = torch.bucketize(blocks / scales.clamp_min(1e-30)[:, None], edges, out_int32=True).view(-1, 2).byte()
    return (places[:, 0] << 4) | places[:, 1], scales


def dequantise_nf4(codes: Tensor, scales: Tensor, like: Tensor) -> Tensor:
    """codes (out, in / 2) -> the weight (out, in) in the type of `like`."""
    count = codes.numel() * 2
    operation = torch.ops.bitsandbytes.dequantize_4bit
    flat: Tensor = operation(codes.view(-1, 1), scales, BLOCK, "nf4", [count // BLOCK, BLOCK], like.dtype)
    return flat.view(codes.shape[0], -1)


@dataclass(frozen=True, slots=True)
class FourBit:
    """A weight (out, in): codes (out, in / 2) and scales (out * in / BLOCK,). `like`: an empty tensor in the compute
    type."""

    codes: Tensor
    scales: Tensor
    like: Tensor

    @classmethod
    def empty(cls, rows: int, columns: int, compute: torch.dtype, device: torch.device) -> FourBit:
        """Space for a weight (rows, columns)."""
        codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(rows * columns // BLOCK, device=device)
        return cls(codes, scales, torch.empty(0, dtype=compute, device=device))

    def dense(self) -> Tensor:
        """(out, in) in the compute type."""
        return dequantise_nf4(self.codes, self.scales, self.like)

    def write(self, at: int, values: Tensor) -> None:
        """Quantise values (n,) and store them as the weights from index `at` on; both are multiples of BLOCK."""
        end = at + len(values)
        codes, scales = quantise_nf4(values.to(self.codes.device))
        self.codes.view(-1)[at // 2 : end // 2] = codes
        self.scales[at // BLOCK : end // BLOCK] = scales


Weight = Tensor | FourBit


def dense_weight(weight: Weight) -> Tensor:
    """The weight to multiply with. 4-bit weights are dequantised at every call, so keep the result only during the
    product."""
    return weight.dense() if isinstance(weight, FourBit) else weight


# Frozen projections with their LoRA adapters as single operations with hand-written backward passes.
#
# With autograd, the adapter's sum and each of its gradients would be another tensor as wide as the layer, and the MLP,
# the widest part of a decoder, would keep four of them per token. On a CPU the passes over these tensors and the page
# faults for their memory cost as much as the products.

Frozen = tuple[Weight, Tensor | None]
"""Weight and bias of a frozen projection."""


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
    """A frozen linear layer with its adapter, whose contribution is added into the layer's own output.

    As separate operations, the sum and the gradient of each part would be another tensor as wide as the layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None, scale: float, *adapter: Tensor) -> Tensor:
        down, *lora_bs = adapter
        y = F.linear(x, dense_weight(weight), bias)
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
        grad_x = (gradients[0] @ dense_weight(ctx.weight)).addmm_(grad_low, down) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None, grad_low.t() @ x, *grad_ups


def _parts(y: Tensor, lora_bs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of y that each part of the adapter adds to."""
    return torch.split(y, [len(up) for up in lora_bs], dim=1)


class _AdaptedMlp(torch.autograd.Function):
    """Keeps gate and up as two tensors (two of half the width are allocated faster than one, and are contiguous) and
    recomputes everything derived from them."""

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
        activated = silu_and_mul(gate, up)
        low_down = F.linear(activated, a_down).mul_(scale)
        y = torch.addmm(residual, activated, dense_weight(down[0]).t()).addmm_(low_down, b_down.t())
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
        grad_activated = (grad_out @ dense_weight(w_down)).addmm_(grad_low_down, a_down)
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
    """The weights and biases of two projections that are fused into one."""
    weight, bias = of
    return dense_weight(weight).chunk(2), (None, None) if bias is None else bias.chunk(2)
