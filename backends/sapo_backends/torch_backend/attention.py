"""Which tokens see which: prompts alone, and completions that share a prompt. Decoding is in cache.py.

An attention takes the projections of N tokens as they come out of one matrix product: rows (N, heads + 2 kv_heads, d),
queries, keys and values of each token, not yet rotated. It gives (N, heads * d).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.fused import rotate

PLAIN_SCORES = 1 << 24
"""On a CPU, scores of up to this many elements are made in full: batched matrix products beat the fused kernel
several times over, whose bfloat16 path is slow. Longer sequences take the fused kernel, which needs less memory."""


def causal_bias(length: int, like: Tensor) -> Tensor:
    """0 on and below the diagonal, -inf above: (1, 1, T, T)."""
    return torch.full((1, 1, length, length), float("-inf"), dtype=like.dtype, device=like.device).triu_(1)


def _is_plain(q: Tensor, k: Tensor) -> bool:
    batch, heads, length, _ = q.shape
    return q.device.type == "cpu" and batch * heads * length * k.shape[2] <= PLAIN_SCORES


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1])


def mixture(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d) + bias) v, and the softmax if it was made in full (else an empty tensor).

    q (B, heads, T, d) contiguous, k and v (B, kv_heads, S, d), bias broadcastable to (B, 1, T, S): 0 or -inf.
    """
    if not _is_plain(q, k):
        return _fused(q, k, v, bias), q.new_empty(0)
    queries, keys, values = _stacked(q, k, v)
    weights = torch.baddbmm(q.new_zeros(1, 1, 1), queries, keys.transpose(1, 2), beta=0, alpha=q.shape[3] ** -0.5)
    weights.view(*q.shape[:3], -1).add_(bias)
    torch.softmax(weights, dim=-1, out=weights)
    return torch.bmm(weights, values).view_as(q), weights


def mixture_backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, weights: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v from that by the result of `mixture`, slope."""
    if not _is_plain(q, k):
        with torch.enable_grad():  # the fused kernel once more: what it keeps for its own backward pass is small
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            again = _fused(leaves[0], leaves[1], leaves[2], bias)
        into_q, into_k, into_v = torch.autograd.grad(again, leaves, slope)
        return into_q, into_k, into_v
    queries, keys, values = _stacked(q, k, v)
    slope = slope.reshape(queries.shape)
    into_v = torch.bmm(weights.transpose(1, 2), slope)
    into_weights = torch.bmm(slope, values.transpose(1, 2))
    into_scores = torch._softmax_backward_data(into_weights, weights, -1, weights.dtype)
    none, scale = slope.new_zeros(1, 1, 1), slope.shape[2] ** -0.5
    into_q = torch.baddbmm(none, into_scores, keys, beta=0, alpha=scale)
    into_k = torch.baddbmm(none, into_scores.transpose(1, 2), queries, beta=0, alpha=scale)
    return into_q.view_as(q), into_k.view_as(k), into_v.view_as(v)


def _stacked(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As batches of matrices: queries that share a key head lie behind one another."""
    batch, kv_heads, seen, width = k.shape
    return q.view(batch * kv_heads, -1, width), k.reshape(-1, seen, width), v.reshape(-1, seen, width)


def _queries(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(batch * T, ., d) -> (batch, heads, T, d)."""
    return rows[:, :heads].reshape(batch, -1, heads, rows.shape[2]).transpose(1, 2).contiguous()


def _keys_values(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(batch * T, heads + 2 kv_heads, d) -> (2, batch, kv_heads, T, d), not copied."""
    _, both, size = rows.shape
    return rows[:, heads:].view(batch, -1, 2, (both - heads) // 2, size).permute(2, 0, 3, 1, 4)


def _flat(x: Tensor) -> Tensor:
    """(batch, heads, T, d) -> (batch * T, heads, d), not copied if it can be helped."""
    return x.transpose(1, 2).flatten(0, 1)


@dataclass(slots=True)
class PromptAttention:
    """Causal attention over right-padded prompts, without gradients and in place; keeps the keys and values of every
    layer (2, prompts, kv_heads, T, d)."""

    prompts: int
    keys_values: list[Tensor]

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotate(rows[:, : (heads + rows.shape[1]) // 2], cos, sin)
        kept = _keys_values(rows, self.prompts, heads).contiguous()
        self.keys_values.append(kept)
        q = _queries(rows, self.prompts, heads)
        mixed, _ = mixture(q, kept[0], kept[1], causal_bias(q.shape[2], q))
        return _flat(mixed).flatten(1)


@dataclass(frozen=True, slots=True)
class GroupAttention:
    """Prompts, then completions that each continue one of them: a prompt is computed once for all its completions.

    The flat tokens are `prompts` right-padded rows of prompt tokens, then `len(owner)` right-padded rows of
    completion tokens. owner (C,): each completion's prompt. bias (C, 1, c, p + c): 0 where a completion token sees,
    else -inf.
    """

    prompts: int
    prompt_tokens: int
    owner: Tensor
    bias: Tensor

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        result: Tensor = _GroupAttention.apply(rows, cos, sin, heads, self)  # type: ignore[no-untyped-call]
        return result


class _GroupAttention(torch.autograd.Function):
    """Both attentions of a layer with the rotation, so that their gradient is one tensor, written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, cos: Tensor, sin: Tensor, heads: int, of: GroupAttention) -> Tensor:
        split, count = of.prompt_tokens, len(of.owner)
        rows = rows.clone()
        rotate(rows[:, : (heads + rows.shape[1]) // 2], cos, sin)
        q, own_q = _queries(rows[:split], of.prompts, heads), _queries(rows[split:], count, heads)
        kv = _keys_values(rows[:split], of.prompts, heads).contiguous()
        seen = torch.cat(
            (kv[:, of.owner], _keys_values(rows[split:], count, heads)), dim=3
        )  # (2, C, kv_heads, p + c, d)
        mixed, weights = mixture(q, kv[0], kv[1], causal_bias(q.shape[2], q))
        own_mixed, own_weights = mixture(own_q, seen[0], seen[1], of.bias)
        ctx.save_for_backward(cos, sin, q, kv, weights, own_q, seen, own_weights)
        ctx.of = of
        result = rows.new_empty(len(rows), heads, rows.shape[2])
        result[:split], result[split:] = _flat(mixed), _flat(own_mixed)
        return result.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin, q, kv, weights, own_q, seen, own_weights = ctx.saved_tensors
        of: GroupAttention = ctx.of
        heads, kv_heads, length = q.shape[1], kv.shape[2], kv.shape[3]
        split, count = of.prompt_tokens, len(of.owner)
        slope = gradients[0].reshape(len(gradients[0]), heads, -1)  # (N, heads, d)
        result = slope.new_empty(len(slope), heads + 2 * kv_heads, slope.shape[2])
        into_q, *into_seen = mixture_backward(
            own_q, seen[0], seen[1], of.bias, own_weights, _queries(slope[split:], count, heads)
        )
        result[split:, :heads] = _flat(into_q)
        for source, target in zip(into_seen, _keys_values(result[split:], count, heads), strict=True):
            target.copy_(source[:, :, length:])
        causal = causal_bias(q.shape[2], q)
        into_q, *into_kv = mixture_backward(
            q, kv[0], kv[1], causal, weights, _queries(slope[:split], of.prompts, heads)
        )
        result[:split, :heads] = _flat(into_q)
        targets = _keys_values(result[:split], of.prompts, heads)
        wide = torch.promote_types(slope.dtype, torch.float32)
        for more, own, target in zip(into_seen, into_kv, targets, strict=True):
            target.copy_(own.to(wide).index_add_(0, of.owner, more[:, :, :length].to(wide)))
        rotate(result[:, : heads + kv_heads], cos, -sin)
        return result, None, None, None, None
