"""Normalisation, rotation and gate with hand-written backward passes: fewer passes over memory, fewer tensors kept.

On a CPU these elementwise parts cost as much as the matrix products when left to autograd.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.native.library import Kernels
from sapo_backends.torch_backend.ops.native_ops import Gated, Normalised
from sapo_backends.torch_backend.runtime.torchscript import on_cpu


def normalised(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x r w, see rms_norm, and r."""
    scale = inverse_norm(x, eps)  # (..., 1)
    return (x * scale).mul_(weight), scale


def _norm_backward(x: Tensor, weight: Tensor, scale: Tensor, slope: Tensor, trained: bool) -> list[Tensor]:
    """The gradient by x, and where it is trained by the weight."""
    normal = x * scale
    result: list[Tensor] = []
    if trained:
        parts = (slope * normal).reshape(-1, x.shape[-1])
        result.append(torch.mm(parts.new_ones([1, len(parts)]), parts)[0])  # a sum, but several times faster
    slope = slope * weight
    # What only changes x's length has no effect.
    along = torch.linalg.vecdot(slope, normal).unsqueeze(-1).mul_(1.0 / x.shape[-1])
    # (slope - normal * along) * scale; addcmul and sub are several times slower than this in bfloat16.
    result.append(slope.add_(normal.mul_(along.neg_())).mul_(scale))
    return result


class _RmsNorm(torch.autograd.Function):
    """y = x r w with r = (mean x^2 + eps)^-1/2 over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normal, scale = on_cpu(normalised, x)(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return normal

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x, weight, scale), trained = ctx.saved_tensors, ctx.needs_input_grad[1]
        found = on_cpu(_norm_backward, x)(x, weight, scale, gradients[0], trained)
        return found[-1], found[0] if trained else None, None


def _gate(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate), kept because its exponential costs more than its memory, and that times up."""
    gate, up = gate_up.chunk(2, dim=-1)
    opened = F.silu(gate)
    return opened * up, opened


def _gate_backward(gate_up: Tensor, opened: Tensor, slope: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    result = torch.empty_like(gate_up)
    into_gate, into_up = result.chunk(2, dim=-1)
    torch.mul(slope, opened, out=into_up)
    torch.ops.aten.silu_backward(slope * up, gate, grad_input=into_gate)
    return result


class _SwiGlu(torch.autograd.Function):
    """silu(gate) * up of a fused (N, 2 I)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        result, opened = on_cpu(_gate, gate_up)(gate_up)
        ctx.save_for_backward(gate_up, opened)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        return on_cpu(_gate_backward, gate_up)(gate_up, opened, gradients[0])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate x (N, heads, d) in the planes (i, i + d / 2), in place.

    cos, sin (N, 1, d) of the angles, the first half of sin negated; -sin rotates back.
    """
    half = x.shape[-1] // 2
    across = torch.roll(x, [half], [-1])
    x.mul_(cos).addcmul_(across, sin)


def inverse_norm(x: Tensor, eps: float) -> Tensor:
    """(mean x^2 + eps)^-1/2 over the last axis, kept as an axis of one."""
    norm: Tensor = torch.linalg.vector_norm(x, 2.0, [-1], True)  # accumulates in float32, rounds only its result
    if x.dtype != torch.float64:
        norm = norm.to(torch.float32)
    # One operation with a tensor for eps; a Python number among tensors is two more, a conversion and its copy.
    return torch.addcmul(norm.new_full([], eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_().to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, kernels: Kernels | None = None) -> Tensor:
    """Root-mean-square normalisation (arXiv 1910.07467) over the last axis."""
    if kernels is not None:
        native: Tensor = Normalised.apply(kernels, x, weight, eps)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return result
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    return normalised(x, weight, eps)[0]


def swiglu(gate_up: Tensor, kernels: Kernels | None = None) -> Tensor:
    """silu(first half) * second half along the last axis (arXiv 2002.05202)."""
    if kernels is not None:
        native: Tensor = Gated.apply(kernels, gate_up)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and gate_up.requires_grad:
        result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
        return result
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
