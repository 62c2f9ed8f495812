"""Which tokens see which: prompts, and completions that share a prompt. Decoding is in cache.py.

An attention takes the projections of N flat tokens as they come out of one matrix product: rows (N, heads +
2 kv_heads, d), queries, keys and values of each token, not yet rotated. It gives (N, heads * d), 0 for tokens of no
slab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sapo_backends.torch_backend.fused import rotate
from sapo_backends.torch_backend.mixture import mixture, mixture_backward, plain
from sapo_backends.torch_backend.packing import Slab


def _split(padded: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """(rows, width, heads + 2 kv_heads, d) -> queries (kv_heads, rows, g, width, d) with g queries a key, scaled, and
    keys and values (2, kv_heads, rows, width, d)."""
    rows, width, both, size = padded.shape
    kv_heads = (both - heads) // 2
    q = padded[:, :, :heads].view(rows, width, kv_heads, heads // kv_heads, size).permute(2, 0, 3, 1, 4)
    kv = padded[:, :, heads:].view(rows, width, 2, kv_heads, size).permute(2, 3, 0, 1, 4)
    return q.contiguous().mul_(size**-0.5), kv.contiguous()


def _by_token(mixed: Tensor) -> Tensor:
    """(kv_heads, rows, g, width, d) -> (rows, width, heads, d)."""
    return mixed.permute(1, 3, 0, 2, 4).flatten(2, 3)


def _by_head(x: Tensor, kv_heads: int) -> Tensor:
    """(rows, width, heads, d) -> (kv_heads, rows, g, width, d)."""
    rows, width, heads, size = x.shape
    return x.view(rows, width, kv_heads, heads // kv_heads, size).permute(2, 0, 3, 1, 4).contiguous()


def _kind(slab: Slab, rows: Tensor, heads: int) -> torch.dtype:
    """The type to compute in: products of ever-changing shapes are float32 on a CPU, see mixture."""
    fits = plain(rows.device, slab.rows * heads * slab.width * slab.seen)
    return torch.promote_types(rows.dtype, torch.float32) if fits else rows.dtype


def _attend(
    rows: Tensor, cos: Tensor, sin: Tensor, heads: int, slabs: Sequence[Slab]
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """The result, and for each slab its queries, its keys and values, and what `mixture` kept."""
    both = (heads + rows.shape[1]) // 2
    result = rows.new_zeros(len(rows), heads, rows.shape[2])
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for slab in slabs:
        part = slice(slab.first, slab.end)
        own = rows[part].to(_kind(slab, rows, heads), copy=True)
        rotate(own[:, :both], cos[part].to(own.dtype), sin[part].to(own.dtype))
        q, kv = _split(slab.padded(own), heads)
        shared = None if slab.sees is None else kept[slab.sees][1].to(q.dtype)
        mixed, weights = mixture(q, kv, shared, slab)
        kept.append((q, kv, weights))
        result[part] = slab.flat(_by_token(mixed))
    return result.flatten(1), kept


@dataclass(slots=True)
class PromptAttention:
    """Causal attention over prompts, without gradients. keys_values: of every layer (2, prompts, kv_heads, p, d), padded on
    the right; places (prompts, p): which flat token is whose."""

    slabs: Sequence[Slab]
    places: Tensor
    keys_values: list[Tensor]

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        result, _ = _attend(rows, cos, sin, heads, self.slabs)
        both = (heads + rows.shape[1]) // 2
        rotate(rows[:, heads:both], cos, sin)
        kept = rows[:, heads:][self.places]  # (prompts, p, 2 kv_heads, d)
        self.keys_values.append(kept.view(*self.places.shape, 2, both - heads, -1).permute(2, 0, 3, 1, 4))
        return result


@dataclass(frozen=True, slots=True)
class GroupAttention:
    """Prompts, and completions that each continue one of them: a prompt is computed once for all its completions."""

    slabs: Sequence[Slab]

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        result: Tensor = _GroupAttention.apply(rows, cos, sin, heads, self.slabs)  # type: ignore[no-untyped-call]
        return result


class _GroupAttention(torch.autograd.Function):
    """All attentions of a layer with the rotation, so that their gradient is one tensor, written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, cos: Tensor, sin: Tensor, heads: int, slabs: Sequence[Slab]) -> Tensor:
        result, kept = _attend(rows, cos, sin, heads, slabs)
        ctx.save_for_backward(cos, sin, *(tensor for three in kept for tensor in three))
        ctx.heads, ctx.slabs = heads, slabs
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin, *saved = ctx.saved_tensors
        heads, slabs = ctx.heads, ctx.slabs
        kv_heads, size = saved[0].shape[0], saved[0].shape[-1]
        slopes = gradients[0].view(len(gradients[0]), heads, size)
        result = slopes.new_zeros(len(slopes), heads + 2 * kv_heads, size)
        into_shared: dict[int, Tensor] = {}  # from the completions into their prompts' keys and values
        for number in reversed(range(len(slabs))):
            slab, (q, kv, weights) = slabs[number], saved[3 * number : 3 * number + 3]
            part = slice(slab.first, slab.end)
            slope = _by_head(slab.padded(slopes[part].to(q.dtype)), kv_heads)
            shared = None if slab.sees is None else saved[3 * slab.sees + 1].to(q.dtype)
            into_q, into_kv, into_seen = mixture_backward(q, kv, shared, slab, weights, slope)
            if slab.sees is not None and into_seen is not None:
                found = into_shared.get(slab.sees)
                into_shared[slab.sees] = into_seen if found is None else found.add_(into_seen)
            if number in into_shared:
                into_kv = into_kv + into_shared.pop(number)
            pieces = (_by_token(into_q.mul_(size**-0.5)), into_kv.permute(2, 3, 0, 1, 4).flatten(2, 3))
            own = slab.flat(torch.cat([piece.to(into_kv.dtype) for piece in pieces], dim=2))
            rotate(own[:, : heads + kv_heads], cos[part].to(own.dtype), -sin[part].to(own.dtype))
            result[part] = own
        return result, None, None, None, None
