"""RMSNorm, rotary embedding and SwiGLU with hand-written backward passes, in few torch calls or by the compiled
kernels."""

import ctypes
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, RopeSpec
from sapo_backends.torch_backend.native import KernelShape, NativeKernels, data_pointer
from sapo_backends.torch_backend.packing import SequenceSlab
from sapo_backends.torch_backend.runtime import on_cpu

# RMSNorm, SwiGLU and attention of an update by the compiled kernels, with their gradients.


class NativeRmsNorm(torch.autograd.Function):
    """See fused_ops.rms_norm: x (..., width), weight (width,)."""

    @staticmethod
    def forward(ctx: Any, kernels: NativeKernels, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See torch.autograd.Function."""
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.kernels, ctx.eps = kernels, eps
        return kernels.rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor | None, None]:
        """See torch.autograd.Function."""
        (x, weight), grad_out = ctx.saved_tensors, gradients[0].contiguous()
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight) if ctx.needs_input_grad[2] else None
        count, width = x.numel() // x.shape[-1], x.shape[-1]
        pointers = map(data_pointer, (grad_out, grad_x, grad_weight))
        ctx.kernels.library.sapo_rms_norm_backward(count, width, x.data_ptr(), weight.data_ptr(), ctx.eps, *pointers)
        return None, grad_x, grad_weight, None


class NativeSwiGlu(torch.autograd.Function):
    """See fused_ops.swiglu: gate_up (N, 2 width)."""

    @staticmethod
    def forward(ctx: Any, kernels: NativeKernels, gate_up: Tensor) -> Tensor:
        """See torch.autograd.Function."""
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        ctx.kernels = kernels
        return kernels.swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        """See torch.autograd.Function."""
        (gate_up,), grad_out = ctx.saved_tensors, gradients[0].contiguous()
        grad_x = torch.empty_like(gate_up)
        count, width = grad_out.shape
        ctx.kernels.library.sapo_swiglu_backward(count, width, *map(data_pointer, (gate_up, grad_out, grad_x)))
        return None, grad_x


class SequenceAttention:
    """Prompts, and completions that each continue one of them; see decoder.AttentionFunction and
    attention.GroupAttention."""

    def __init__(self, kernels: NativeKernels, slabs: Sequence[SequenceSlab]) -> None:
        """slabs: one per prompt, as packing lays them out for a processor, each followed by its completions."""
        self.kernels = kernels
        starts, lengths, sees, prompt = list[int](), list[int](), list[int](), 0
        for slab in slabs:
            mine = slab.lengths.tolist()
            prompt = len(starts) if slab.sees is None else prompt
            starts += [slab.first + end - length for end, length in zip(accumulate(mine), mine, strict=True)]
            lengths += mine
            sees += [-1 if slab.sees is None else prompt] * len(mine)
        self.sequences = torch.tensor([starts, lengths, sees])
        self.longest, self.end = max(lengths), slabs[-1].end

    def __call__(self, _layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See decoder.AttentionFunction."""
        result: Tensor = _Attention.apply(self, heads, rows.contiguous(), cos, sin)  # type: ignore[no-untyped-call]
        return result

    def call(self, name: str, heads: int, rows: Tensor, *tensors: Tensor) -> None:
        """Call kernels.library.sapo_{name}: sapo_attention and its gradient take the sequences first and the workspace
        last."""
        kv_heads = (rows.shape[1] - heads) // 2
        shape = KernelShape(heads, kv_heads, rows.shape[2], 0, 0.0)
        workspace = torch.empty(self.kernels.library.sapo_attention_workspace(ctypes.byref(shape), self.longest))
        starts, lengths, sees = self.sequences
        counts = len(starts), *map(data_pointer, (starts, lengths, sees)), self.longest
        function = getattr(self.kernels.library, f"sapo_{name}")
        function(ctypes.byref(shape), *counts, *map(data_pointer, (*tensors, workspace)))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attention: SequenceAttention, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated, logsumexp = torch.empty_like(rows), rows.new_empty(len(rows), heads)
        out = rows.new_empty(len(rows), heads * rows.shape[2])
        out[attention.end :].zero_()
        attention.call("attention", heads, rows, rows, cos, sin, rotated, logsumexp, out)
        ctx.save_for_backward(rotated, cos, sin, logsumexp, out)
        ctx.attention, ctx.heads = attention, heads
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor, None, None]:
        rotated, cos, sin, logsumexp, out = ctx.saved_tensors
        grad_out, grad_x = gradients[0].contiguous(), torch.zeros_like(rotated)
        ctx.attention.call(
            "attention_backward", ctx.heads, rotated, rotated, cos, sin, logsumexp, out, grad_out, grad_x
        )
        return None, None, grad_x, None, None


# RMSNorm, rotary embedding and SwiGLU with hand-written backward passes: fewer passes over memory, fewer tensors kept.
#
# On a CPU these elementwise parts cost as much as the matrix products when left to autograd. Rotary position embeddings
# (RoFormer, arXiv 2104.09864) come with linear and Llama-3 scaling.


def inverse_frequencies(rope: RopeSpec, rotary: int) -> Tensor:
    """Radians per position of each pair of coordinates that is rotated (rotary / 2,), float32."""
    exponent = torch.arange(0, rotary, 2, dtype=torch.int64).float() / rotary
    frequencies = 1.0 / (rope.theta**exponent)
    if rope.kind == "none":
        return torch.zeros_like(frequencies)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "longrope":
        return frequencies / torch.tensor(rope.factors)
    if rope.kind != "llama3":
        return frequencies
    # Long wavelengths are stretched by `factor`, short ones kept, those between blended.
    rotations = rope.original_context * frequencies / (2 * math.pi)
    blend = ((rotations - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / rope.factor)


Angles = list[tuple[Tensor, Tensor]]


class RopeTable:
    """cos and sin of every position for each of a model's ropes, made once and grown when needed."""

    def __init__(self, spec: DecoderSpec, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = [(inverse_frequencies(rope, spec.rotary), rope.attention) for rope in spec.ropes]
        self._device, self._dtype = device, dtype
        self._grow(256)

    def _grow(self, positions: int) -> None:
        self._tables = [self._table(positions, *rope) for rope in self._frequencies]

    def _table(self, positions: int, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(positions).float(), frequencies).repeat(1, 2)  # (positions, rotary)
        signs = torch.full((angles.shape[1],), factor).index_fill_(0, torch.arange(angles.shape[1] // 2), -factor)
        cos = angles.cos() if factor == 1.0 else angles.cos() * factor
        return cos.to(self._device, self._dtype), (angles.sin() * signs).to(self._device, self._dtype)

    def tables(self, longest: int) -> Angles:
        """cos, sin (at least longest, rotary) of positions from 0, of each rope; the first half of sin is negated."""
        if longest > len(self._tables[0][0]):
            self._grow(2 * longest)
        return self._tables

    def at(self, positions: Tensor, longest: int) -> Angles:
        """cos, sin (N, 1, rotary) of each rope at positions (N,), all below `longest`."""
        return [(cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)) for cos, sin in self.tables(longest)]


def rms_norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x r w, see rms_norm, and r."""
    scale = inverse_norm(x, eps)  # (..., 1)
    return (x * scale).mul_(weight), scale


def _norm_backward(x: Tensor, weight: Tensor, scale: Tensor, grad_out: Tensor, trained: bool) -> list[Tensor]:
    """The gradient of x, and of the weight if that is trained."""
    normal = x * scale
    result: list[Tensor] = []
    if trained:
        parts = (grad_out * normal).reshape(-1, x.shape[-1])
        result.append(torch.mm(parts.new_ones([1, len(parts)]), parts)[0])  # a sum, but several times faster
    grad_out = grad_out * weight
    # A change of only x's length has no effect.
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
        grads = on_cpu(_norm_backward, x)(x, weight, scale, gradients[0], trained)
        return grads[-1], grads[0] if trained else None, None


class _WideRmsNorm(torch.autograd.Function):
    """RMSNorm by offset + weight, computed in float32; x and weight are kept unconverted for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
        normal, scale = on_cpu(rms_norm_forward, x)(x.float(), weight.float() + offset, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.offset = offset
        return normal.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (x, weight, scale), trained = ctx.saved_tensors, ctx.needs_input_grad[1]
        wide = x.float(), weight.float() + ctx.offset, scale, gradients[0].float(), trained
        grads = [grad.to(x.dtype) for grad in on_cpu(_norm_backward, x)(*wide)]
        return grads[-1], grads[0] if trained else None, None, None


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, all of the same shape."""
    return F.silu(gate).mul_(up)


def gated_backward(
    gate: Tensor, up: Tensor, silu_gate: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
) -> None:
    """Write the gradients of `silu_and_mul` into grad_gate and grad_up, which may be silu_gate; all of one shape."""
    torch.mul(grad_out, up, out=grad_gate)
    torch.mul(grad_out, silu_gate, out=grad_up)
    torch.ops.aten.silu_backward(grad_gate, gate, grad_input=grad_gate)


def _swiglu(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate), kept because recomputing its exponential costs more than its memory, and silu(gate) * up."""
    gate, up = gate_up.chunk(2, dim=-1)
    silu_gate = F.silu(gate)
    return silu_gate * up, silu_gate


def _swiglu_backward(gate_up: Tensor, silu_gate: Tensor, grad_out: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    result = torch.empty_like(gate_up)
    grad_gate, grad_up = result.chunk(2, dim=-1)
    gated_backward(gate, up, silu_gate, grad_out, grad_gate, grad_up)
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


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first r of d coordinates of x (N, heads, d) in the planes (i, i + r / 2), in place.

    cos, sin (N, 1, r) of the angles, the first half of sin negated; -sin rotates back.
    """
    size = cos.shape[-1]
    turned = x if size == x.shape[-1] else x.narrow(-1, 0, size)
    across = torch.roll(turned, [size // 2], [-1])
    turned.mul_(cos).addcmul_(across, sin)


def inverse_norm(x: Tensor, eps: float) -> Tensor:
    """(mean x^2 + eps)^-1/2 over the last axis, which stays with size 1."""
    norm: Tensor = torch.linalg.vector_norm(x, 2.0, [-1], True)  # accumulates in float32, rounds only its result
    if x.dtype != torch.float64:
        norm = norm.to(torch.float32)
    # One operation with a tensor for eps; a Python number would add two, a conversion and its copy.
    return torch.addcmul(norm.new_full([], eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_().to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, kernels: NativeKernels | None = None) -> Tensor:
    """RMSNorm (arXiv 1910.07467) of x (..., width) by weight (width,) over the last axis."""
    if kernels is not None:
        native: Tensor = NativeRmsNorm.apply(kernels, x, weight, eps)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return result
    return rms_norm_forward(x, weight, eps)[0]


def wide_rms_norm(x: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
    """RMSNorm of x by offset + weight with one rounding: in bfloat16 the sum, the scale and the product would each
    round once, which makes up a third of Gemma's error at 1,500 tokens."""
    result: Tensor = _WideRmsNorm.apply(x, weight, offset, eps)  # type: ignore[no-untyped-call]
    return result


def swiglu(gate_up: Tensor, kernels: NativeKernels | None = None) -> Tensor:
    """SwiGLU (arXiv 2002.05202): silu(first half) * second half of gate_up (N, 2 width) -> (N, width)."""
    if kernels is not None:
        native: Tensor = NativeSwiGlu.apply(kernels, gate_up)  # type: ignore[no-untyped-call]
        return native
    if torch.is_grad_enabled() and gate_up.requires_grad:
        result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
        return result
    gate, up = gate_up.chunk(2, dim=-1)
    return silu_and_mul(gate, up)


def geglu(gate_up: Tensor) -> Tensor:
    """GeGLU with the tanh approximation: gelu(first half) * second half of gate_up (N, 2 width) -> (N, width)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def apply_softcap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap), in place; x itself for cap 0."""
    return x if cap == 0.0 else x.div_(cap).tanh_().mul_(cap)
