"""RMSNorm, SwiGLU and attention of an update by the compiled kernels, with their gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sapo_backends.torch_backend.native.library import Kernels, Shape, at
from sapo_backends.torch_backend.ops.packing import Slab


class NativeRmsNorm(torch.autograd.Function):
    """See fused_ops.rms_norm: x (..., width), weight (width,)."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, weight: Tensor, eps: float) -> Tensor:
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
        pointers = map(at, (grad_out, grad_x, grad_weight))
        ctx.kernels.library.sapo_rms_norm_backward(count, width, x.data_ptr(), weight.data_ptr(), ctx.eps, *pointers)
        return None, grad_x, grad_weight, None


class NativeSwiGlu(torch.autograd.Function):
    """See fused_ops.swiglu: gate_up (N, 2 width)."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, gate_up: Tensor) -> Tensor:
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
        ctx.kernels.library.sapo_swiglu_backward(count, width, *map(at, (gate_up, grad_out, grad_x)))
        return None, grad_x


class SequenceAttention:
    """Prompts, and completions that each continue one of them; see decoder.Attend and attention.GroupAttention."""

    def __init__(self, kernels: Kernels, slabs: Sequence[Slab]) -> None:
        """slabs: each prompt one of its own, as packing lays them out for a processor, its completions behind it."""
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
        """See decoder.Attend."""
        result: Tensor = _Attention.apply(self, heads, rows.contiguous(), cos, sin)  # type: ignore[no-untyped-call]
        return result

    def call(self, name: str, heads: int, rows: Tensor, *tensors: Tensor) -> None:
        """kernels.library.sapo_{name}, as sapo_attention and its gradient take the sequences first and the workspace
        last."""
        kv_heads = (rows.shape[1] - heads) // 2
        shape = Shape(heads, kv_heads, rows.shape[2], 0, 0.0)
        workspace = torch.empty(self.kernels.library.sapo_attention_workspace(ctypes.byref(shape), self.longest))
        starts, lengths, sees = self.sequences
        counts = len(starts), *map(at, (starts, lengths, sees)), self.longest
        function = getattr(self.kernels.library, f"sapo_{name}")
        function(ctypes.byref(shape), *counts, *map(at, (*tensors, workspace)))


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
