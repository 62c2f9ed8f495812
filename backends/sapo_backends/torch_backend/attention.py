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


@dataclass(frozen=True, slots=True)
class Mixture:
    """softmax(q k^T / sqrt(d) + bias) v with what its backward pass needs.

    q (B, heads, T, d) contiguous, k and v (B, kv_heads, S, d), bias broadcastable to (B, 1, T, S): 0 or -inf.
    saved: the softmax, or what autograd keeps of the fused kernel.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    result: Tensor
    weights: Tensor | None

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *, backward: bool) -> Mixture:
        """Compute it; without `backward` nothing is kept for gradients."""
        batch, heads, length, _ = q.shape
        if q.device.type != "cpu" or batch * heads * length * k.shape[2] > PLAIN_SCORES:
            grouped = heads != k.shape[1]
            if not backward:
                return cls(q, k, v, F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=grouped), None)
            with torch.enable_grad():
                q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
                mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=grouped)
            return cls(q, k, v, mixed, None)
        queries, keys, values = _stacked(q, k, v)
        weights = torch.baddbmm(q.new_zeros(1, 1, 1), queries, keys.transpose(1, 2), beta=0, alpha=q.shape[3] ** -0.5)
        weights.view(batch, heads, length, -1).add_(bias)
        torch.softmax(weights, dim=-1, out=weights)
        return cls(q, k, v, torch.bmm(weights, values).view_as(q), weights)

    def backward(self, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by q, k and v from that by the result."""
        if self.weights is None:
            into_q, into_k, into_v = torch.autograd.grad(self.result, (self.q, self.k, self.v), slope)
            return into_q, into_k, into_v
        queries, keys, values = _stacked(self.q, self.k, self.v)
        weights, slope = self.weights, slope.reshape(queries.shape)
        into_v = torch.bmm(weights.transpose(1, 2), slope)
        into_weights = torch.bmm(slope, values.transpose(1, 2))
        into_scores = torch._softmax_backward_data(into_weights, weights, -1, weights.dtype)
        none, scale = slope.new_zeros(1, 1, 1), slope.shape[2] ** -0.5
        into_q = torch.baddbmm(none, into_scores, keys, beta=0, alpha=scale)
        into_k = torch.baddbmm(none, into_scores.transpose(1, 2), queries, beta=0, alpha=scale)
        return into_q.view_as(self.q), into_k.view_as(self.k), into_v.view_as(self.v)


def _stacked(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As batches of matrices: queries that share a key head lie behind one another."""
    batch, kv_heads, seen, width = k.shape
    return q.view(batch * kv_heads, -1, width), k.reshape(-1, seen, width), v.reshape(-1, seen, width)


def _queries(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(batch * T, ., d) -> (batch, heads, T, d)."""
    return rows[:, :heads].unflatten(0, (batch, -1)).transpose(1, 2).contiguous()


def _keys_values(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(batch * T, heads + 2 kv_heads, d) -> (2, batch, kv_heads, T, d), not copied."""
    return rows[:, heads:].unflatten(1, (2, -1)).unflatten(0, (batch, -1)).permute(2, 0, 3, 1, 4)


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
        mixed = Mixture.of(q, kept[0], kept[1], causal_bias(q.shape[2], q), backward=False)
        return _flat(mixed.result).flatten(1)


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
        split, backward = of.prompt_tokens, ctx.needs_input_grad[0]
        rows = rows.clone()
        rotate(rows[:, : (heads + rows.shape[1]) // 2], cos, sin)
        prompt_kv = _keys_values(rows[:split], of.prompts, heads).contiguous()
        q = _queries(rows[:split], of.prompts, heads)
        prompt = Mixture.of(q, prompt_kv[0], prompt_kv[1], causal_bias(q.shape[2], q), backward=backward)
        count = len(of.owner)
        own_kv = _keys_values(rows[split:], count, heads)
        seen = torch.cat((prompt_kv[:, of.owner], own_kv), dim=3)  # (2, C, kv_heads, p + c, d)
        completion = Mixture.of(_queries(rows[split:], count, heads), seen[0], seen[1], of.bias, backward=backward)
        if backward:
            ctx.of, ctx.heads, ctx.angles, ctx.parts = of, heads, (cos, sin), (prompt, completion)
        result = rows.new_empty(len(rows), heads, rows.shape[2])
        result[:split], result[split:] = _flat(prompt.result), _flat(completion.result)
        return result.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        of, heads, (cos, sin), (prompt, completion) = ctx.of, ctx.heads, ctx.angles, ctx.parts
        ctx.parts = None
        slope = gradients[0].unflatten(1, (heads, -1))
        split, count, kv_heads = of.prompt_tokens, len(of.owner), prompt.k.shape[1]
        result = slope.new_empty(len(slope), heads + 2 * kv_heads, slope.shape[2])
        into_q, *into_kv = completion.backward(_queries(slope[split:], count, heads))
        result[split:, :heads] = _flat(into_q)
        length = prompt.k.shape[2]
        for source, target in zip(into_kv, _keys_values(result[split:], count, heads), strict=True):
            target.copy_(source[:, :, length:])
        into_q, *into_prompt = prompt.backward(_queries(slope[:split], of.prompts, heads))
        result[:split, :heads] = _flat(into_q)
        targets = _keys_values(result[:split], of.prompts, heads)
        for seen, own, target in zip(into_kv, into_prompt, targets, strict=True):
            total = own.float().index_add_(0, of.owner, seen[:, :, :length].float())
            target.copy_(total)
        rotate(result[:, : heads + kv_heads], cos, -sin)
        return result, None, None, None, None
