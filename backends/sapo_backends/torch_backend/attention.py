"""Which tokens see which: prompts alone, completions that share a prompt, and decoding against a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def _batched(x: Tensor, rows: int) -> Tensor:
    """(rows * T, heads, d) -> (rows, heads, T, d)."""
    return x.view(rows, -1, *x.shape[1:]).transpose(1, 2)


def _flat(x: Tensor) -> Tensor:
    """(rows, heads, T, d) -> (rows * T, heads * d)."""
    rows, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(rows * length, heads * width)


PLAIN_SCORES = 1 << 24
"""On a CPU, scores of up to this many elements are made in full: batched matrix products beat the fused kernel
several times over, whose bfloat16 path is slow. Longer sequences take the fused kernel, which needs less memory."""


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v.

    q (rows, heads, T, d), k and v (rows, kv_heads, S, d), bias broadcastable to (rows, 1, T, S): 0 or -inf.
    """
    rows, heads, length, width = q.shape
    kv_heads, seen = k.shape[1], k.shape[2]
    if q.device.type != "cpu" or rows * heads * length * seen > PLAIN_SCORES:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=heads != kv_heads)
    grouped = q.reshape(rows, kv_heads, -1, width)  # queries that share a key head lie behind one another
    scores = torch.matmul(grouped * width**-0.5, k.transpose(-1, -2)).view(rows, kv_heads, -1, length, seen)
    weights = (scores + bias.unsqueeze(1)).softmax(dim=-1).view(rows, kv_heads, -1, seen)
    return torch.matmul(weights, v).view(rows, heads, length, width)


def causal_bias(length: int, like: Tensor) -> Tensor:
    """0 on and below the diagonal, -inf above: (1, 1, T, T)."""
    return torch.full((1, 1, length, length), float("-inf"), dtype=like.dtype, device=like.device).triu_(1)


@dataclass(slots=True)
class PromptAttention:
    """Causal attention over right-padded prompts; keeps keys and values (prompts, kv_heads, T, d) of every layer."""

    prompts: int
    keys: list[Tensor]
    values: list[Tensor]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = _batched(k, self.prompts), _batched(v, self.prompts)
        self.keys.append(k)
        self.values.append(v)
        return _flat(attention(_batched(q, self.prompts), k, v, causal_bias(k.shape[2], q)))


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

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        split = self.prompt_tokens
        prompt_k, prompt_v = _batched(k[:split], self.prompts), _batched(v[:split], self.prompts)
        causal = causal_bias(prompt_k.shape[2], q)
        prompt = attention(_batched(q[:split], self.prompts), prompt_k, prompt_v, causal)
        count = len(self.owner)
        keys = torch.cat((prompt_k[self.owner], _batched(k[split:], count)), dim=2)  # (C, kv_heads, p + c, d)
        values = torch.cat((prompt_v[self.owner], _batched(v[split:], count)), dim=2)
        completion = attention(_batched(q[split:], count), keys, values, self.bias)
        return torch.cat((_flat(prompt), _flat(completion)))
