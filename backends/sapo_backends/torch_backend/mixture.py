"""softmax(q k^T) v of one slab, over its own tokens and those of the prompts it continues, and its gradients.

Queries are (kv_heads, rows, g, width, d), scaled, with g queries a key; own keys and values (2, kv_heads, rows, width,
d); those of the prompts (2, kv_heads, prompts, p, d), or None.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.packing import Slab

PLAIN_SCORES = 1 << 23
"""On a CPU, a slab's scores of up to this many elements are made in full, in float32: batched matrix products beat the
fused kernel several times over, and in float32 they are not compiled for each shape. Longer sequences take the fused
kernel, which needs less memory."""


def plain(device: torch.device, scores: int) -> bool:
    """Whether so many scores are made in full."""
    return device.type == "cpu" and scores <= PLAIN_SCORES


def _is_plain(q: Tensor, own: Tensor, shared: Tensor | None) -> bool:
    seen = own.shape[3] + (0 if shared is None else shared.shape[3])
    return plain(q.device, q[..., 0].numel() * seen)


def mixture(q: Tensor, own: Tensor, shared: Tensor | None, slab: Slab) -> tuple[Tensor, Tensor]:
    """Mixed values in the shape of q, and the softmax if it was made in full (else an empty tensor)."""
    if not _is_plain(q, own, shared):
        return _fused(q, _seen(own, shared, slab), slab), q.new_empty(0)
    q_own, k_own, v_own = q.flatten(0, 1).flatten(1, 2), own[0].flatten(0, 1), own[1].flatten(0, 1)
    p = _prompt_width(shared)
    weights = q.new_empty(len(q), q[0, ..., 0].numel(), p + own.shape[3])  # (kv_heads, rows * g * width, p + width)
    causal = torch.full((own.shape[3], own.shape[3]), float("-inf"), dtype=q.dtype).triu_(1)
    own_weights = _own(weights, q_own, p)
    torch.bmm(q_own, k_own.transpose(1, 2), out=own_weights)
    own_weights.view(len(q_own), q.shape[2], *own.shape[3:4], -1).add_(causal)
    if shared is not None:
        torch.bmm(q.flatten(1, 3), shared[0, :, 0].transpose(1, 2), out=weights[:, :, :p])
    torch.softmax(weights, dim=-1, out=weights)
    mixed = torch.bmm(own_weights, v_own)
    if shared is not None:
        mixed.view(len(q), -1, q.shape[4]).baddbmm_(weights[:, :, :p], shared[1, :, 0])
    return mixed.view_as(q), weights


def mixture_backward(
    q: Tensor,
    own: Tensor,
    shared: Tensor | None,
    slab: Slab,
    weights: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients by q, own and shared from that by the result of `mixture`, slope."""
    if not _is_plain(q, own, shared):
        return _fused_backward(q, own, shared, slab, slope)
    q_own, k_own, v_own = q.flatten(0, 1).flatten(1, 2), own[0].flatten(0, 1), own[1].flatten(0, 1)
    slope_own, slope_all, q_all = slope.view_as(q_own), slope.flatten(1, 3), q.flatten(1, 3)
    p = _prompt_width(shared)
    into_weights = torch.empty_like(weights)
    torch.bmm(slope_own, v_own.transpose(1, 2), out=_own(into_weights, q_own, p))
    if shared is not None:
        torch.bmm(slope_all, shared[1, :, 0].transpose(1, 2), out=into_weights[:, :, :p])
    into_scores = torch._softmax_backward_data(into_weights, weights, -1, weights.dtype)
    own_scores, into_own, into_shared = _own(into_scores, q_own, p), torch.empty_like(own), None
    into_q = torch.bmm(own_scores, k_own)
    torch.bmm(own_scores.transpose(1, 2), q_own, out=into_own[0].flatten(0, 1))
    torch.bmm(_own(weights, q_own, p).transpose(1, 2), slope_own, out=into_own[1].flatten(0, 1))
    if shared is not None:
        into_shared = torch.empty_like(shared)
        into_q.view_as(q_all).baddbmm_(into_scores[:, :, :p], shared[0, :, 0])
        torch.bmm(into_scores[:, :, :p].transpose(1, 2), q_all, out=into_shared[0, :, 0])
        torch.bmm(weights[:, :, :p].transpose(1, 2), slope_all, out=into_shared[1, :, 0])
    return into_q.view_as(q), into_own, into_shared


def _prompt_width(shared: Tensor | None) -> int:
    return 0 if shared is None else shared.shape[3]


def _own(weights: Tensor, q_own: Tensor, p: int) -> Tensor:
    """The part of weights on own tokens (kv_heads * rows, g * width, width)."""
    return weights.view(*q_own.shape[:2], -1)[:, :, p:]


def _seen(own: Tensor, shared: Tensor | None, slab: Slab) -> Tensor:
    """Keys and values that each row sees (2, kv_heads, rows, p + width, d), its prompt's copied."""
    return own if shared is None else torch.cat((shared[:, :, slab.owner], own), dim=3)


def _fused(q: Tensor, seen: Tensor, slab: Slab) -> Tensor:
    """By the fused kernel."""
    kv_heads, rows, group, width, size = q.shape
    heads = q.permute(1, 0, 2, 3, 4).reshape(rows, kv_heads * group, width, size)
    k, v = seen.permute(0, 2, 1, 3, 4)
    bias = slab.bias(q.dtype)
    mixed = F.scaled_dot_product_attention(heads, k, v, attn_mask=bias, scale=1.0, enable_gqa=group > 1)
    return mixed.reshape(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)


def _fused_backward(
    q: Tensor, own: Tensor, shared: Tensor | None, slab: Slab, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The fused kernel once more: what it keeps for its own backward pass is small."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, _seen(own, shared, slab))]
        again = _fused(leaves[0], leaves[1], slab)
    into_q, into_seen = torch.autograd.grad(again, leaves, slope)
    if shared is None:
        return into_q, into_seen, None
    p, wide = shared.shape[3], torch.promote_types(q.dtype, torch.float32)
    into_shared = torch.zeros(shared.shape, dtype=wide, device=q.device)
    into_shared.index_add_(2, slab.owner, into_seen[:, :, :, :p].to(wide))
    return into_q, into_seen[:, :, :, p:], into_shared
