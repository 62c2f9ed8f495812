"""The operations of a decoder with hand-written backward passes, in few torch calls or by the compiled kernels: RMSNorm,
rotary embedding, SwiGLU, frozen projections with their adapters, log-probabilities."""

import ctypes
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, RopeSpec
from sapo_backends.common import round_memory
from sapo_backends.errors import BackendUnavailable
from sapo_backends.packages import install_command
from sapo_backends.torch_backend import native
from sapo_backends.torch_backend.native import KernelShape, NativeKernels, data_pointer
from sapo_backends.torch_backend.packing import SequenceSlab
from sapo_backends.torch_backend.runtime import on_cpu

# RMSNorm, SwiGLU and attention of an update by the compiled kernels, with their gradients.


class NativeRmsNorm(torch.autograd.Function):
    """See ops.rms_norm: x (..., width), weight (width,)."""

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
    """See ops.swiglu: gate_up (N, 2 width)."""

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


# Frozen projections: in 4 bits (NF4 of QLoRA), and with their LoRA adapters as single operations with hand-written
# gradients.

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
    def empty(cls, rows: int, columns: int, compute: torch.dtype, device: torch.device) -> "FourBit":
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


# Log-probabilities of given tokens without ever holding all logits.
#
# The forward pass goes through the unembedding in chunks of rows and keeps two numbers per row and, if gradients are
# needed and the unembedding is frozen, the gradient of the row's log-probability. If it is trained, the backward pass
# recomputes each chunk's probabilities, unless all of them are small enough to keep. For a vocabulary of 151k this is
# the difference between gigabytes and megabytes.

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
        self._kernels = native.vocabulary_kernels(head, softcap)
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
