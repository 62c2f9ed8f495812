"""RMSNorm, rotary embedding and SwiGLU with hand-written backward passes: fewer passes over memory, fewer tensors kept.

On a CPU these elementwise parts cost as much as the matrix products when left to autograd.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.native.library import Kernels
from sapo_backends.torch_backend.ops.native_ops import NativeRmsNorm, NativeSwiGlu
from sapo_backends.torch_backend.runtime.torchscript import on_cpu


def rms_norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x r w, see rms_norm, and r."""
    scale = inverse_norm(x, eps)  # (..., 1)
    return (x * scale).mul_(weight), scale


def _norm_backward(x: Tensor, weight: Tensor, scale: Tensor, grad_out: Tensor, trained: bool) -> list[Tensor]:
    """The gradient by x, and where it is trained by the weight."""
    normal = x * scale
    result: list[Tensor] = []
    if trained:
        parts = (grad_out * normal).reshape(-1, x.shape[-1])
        result.append(torch.mm(parts.new_ones([1, len(parts)]), parts)[0])  # a sum, but several times faster
    grad_out = grad_out * weight
    # What only changes x's length has no effect.
    radial = torch.linalg.vecdot(grad_out, normal).unsqueeze(-1).mul_(1.0 / x.shape[-1])
    # (grad_out - normal * radial) * scale; addcmul and sub are several times slower than this in bfloat16.
    result.append(grad_out.add_(normal.mul_(radial.neg_())).mul_(scale))
    return result


class _RmsNorm(torch.autograd.Function):
    """y = x r w with r = (mean x^2 + eps)^-1/2 over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normal, scale = on_cpu(rms_norm_forward, x)(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return normal

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x, weight, scale), trained = ctx.saved_tensors, ctx.needs_input_grad[1]
        found = on_cpu(_norm_backward, x)(x, weight, scale, gradients[0], trained)
        return found[-1], found[0] if trained else None, None


def _swiglu(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate), kept because its exponential costs more than its memory, and that times up."""
    gate, up = gate_up.chunk(2, dim=-1)
    silu_gate = F.silu(gate)
    return silu_gate * up, silu_gate


def _swiglu_backward(gate_up: Tensor, silu_gate: Tensor, grad_out: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    result = torch.empty_like(gate_up)
    grad_gate, grad_up = result.chunk(2, dim=-1)
    torch.mul(grad_out, silu_gate, out=grad_up)
    torch.ops.aten.silu_backward(grad_out * up, gate, grad_input=grad_gate)
    return result


class _SwiGlu(torch.autograd.Function):
    """silu(gate) * up of a fused (N, 2 I)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        result, silu_gate = on_cpu(_swiglu, gate_up)(gate_up)
        ctx.save_for_backward(gate_up, silu_gate)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, silu_gate = ctx.saved_tensors
        return on_cpu(_swiglu_backward, gate_up)(gate_up, silu_gate, gradients[0])


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
    """RMSNorm (arXiv 1910.07467) of x (..., width) by weight (width,) over the last axis."""
    if kernels is not None:
        native: Tensor = NativeRmsNorm.apply(kernels, x, weight, eps)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return result
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    return rms_norm_forward(x, weight, eps)[0]


def swiglu(gate_up: Tensor, kernels: Kernels | None = None) -> Tensor:
    """SwiGLU (arXiv 2002.05202): silu(first half) * second half of gate_up (N, 2 width) -> (N, width)."""
    if kernels is not None:
        native: Tensor = NativeSwiGlu.apply(kernels, gate_up)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and gate_up.requires_grad:
        result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
        return result
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
