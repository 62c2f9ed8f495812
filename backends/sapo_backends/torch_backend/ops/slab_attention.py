"""softmax(q k^T) v of one slab, over its own tokens and those of the prompts it continues, and its gradients.

Queries are (kv_heads, rows, g, width, d), scaled, with g queries a key; own keys and values (2, kv_heads, rows, width,
d); those of the prompts (2, kv_heads, prompts, p, d), or None. bias: -inf where a token does not see, else 0; with
`full_attention` (width, width) over own tokens alone, which all see one prompt, else (1 or rows, 1, width, p + width).
Everything here can be TorchScript (runtime.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.common.round_memory import FULL_SCORES
from sapo_backends.torch_backend.ops.fused_ops import softcapped


def materialises_scores(device: torch.device, scores: int) -> bool:
    """Whether so many scores are made in full."""
    return device.type == "cpu" and scores <= FULL_SCORES


def full_attention(
    q: Tensor, own: Tensor, shared: Tensor | None, bias: Tensor, beyond: Tensor | None, cap: float
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T) v in the shape of q, and the softmax (kv_heads, rows * g * width, p + width).

    beyond (width, p): -inf on those tokens of the prompt that are out of sight, if there are any. cap: see
    fused_ops.softcapped.
    """
    kv_heads, rows, group, width, size = q.shape
    q_own, k_own, v_own = q.view(-1, group * width, size), own[0].flatten(0, 1), own[1].flatten(0, 1)
    p = 0 if shared is None else shared.shape[3]
    weights = q.new_empty([kv_heads, rows * group * width, p + width])
    own_weights = _own(weights, q_own, p)
    _scores(q_own, k_own, own_weights, cap)
    own_weights.view(kv_heads * rows, group, width, width).add_(bias)
    if shared is not None:
        _scores(q.flatten(1, 3), shared[0, :, 0], weights[:, :, :p], cap)
        if beyond is not None:
            weights[:, :, :p].view(kv_heads, rows * group, width, p).add_(beyond)
    torch.softmax(weights, dim=-1, out=weights)
    attended = torch.bmm(own_weights, v_own)
    if shared is not None:
        attended.view(kv_heads, -1, size).baddbmm_(weights[:, :, :p], shared[1, :, 0])
    return attended.view_as(q), weights


def full_attention_backward(
    q: Tensor, own: Tensor, shared: Tensor | None, weights: Tensor, grad_out: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of q, own and shared, given grad_out, that of the result of `full_attention`."""
    group, width, size = q.shape[2:]
    q_own, k_own, v_own = q.view(-1, group * width, size), own[0].flatten(0, 1), own[1].flatten(0, 1)
    grad_out_own, grad_out_all, q_all = grad_out.view_as(q_own), grad_out.flatten(1, 3), q.flatten(1, 3)
    p = 0 if shared is None else shared.shape[3]
    grad_weights = torch.empty_like(weights)
    torch.bmm(grad_out_own, v_own.transpose(1, 2), out=_own(grad_weights, q_own, p))
    if shared is not None:
        torch.bmm(grad_out_all, shared[1, :, 0].transpose(1, 2), out=grad_weights[:, :, :p])
    grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    if cap != 0.0:
        # Out of sight the gradient is 0 already, whatever the slope of a score that nobody used.
        scores = torch.empty_like(weights)
        _scores(q_own, k_own, _own(scores, q_own, p), cap)
        if shared is not None:
            _scores(q_all, shared[0, :, 0], scores[:, :, :p], cap)
        grad_scores.mul_(scores.mul_(1.0 / cap).square_().neg_().add_(1.0))
    own_scores, grad_own = _own(grad_scores, q_own, p), torch.empty_like(own)
    grad_q = torch.bmm(own_scores, k_own)
    torch.bmm(own_scores.transpose(1, 2), q_own, out=grad_own[0].flatten(0, 1))
    torch.bmm(_own(weights, q_own, p).transpose(1, 2), grad_out_own, out=grad_own[1].flatten(0, 1))
    grad_shared: Tensor | None = None
    if shared is not None:
        grad_seen = torch.empty_like(shared)
        grad_q.view_as(q_all).baddbmm_(grad_scores[:, :, :p], shared[0, :, 0])
        torch.bmm(grad_scores[:, :, :p].transpose(1, 2), q_all, out=grad_seen[0, :, 0])
        torch.bmm(weights[:, :, :p].transpose(1, 2), grad_out_all, out=grad_seen[1, :, 0])
        grad_shared = grad_seen
    return grad_q.view_as(q), grad_own, grad_shared


def _scores(q: Tensor, k: Tensor, out: Tensor, cap: float) -> None:
    """q k^T of each of the first axis, capped, into out."""
    torch.bmm(q, k.transpose(1, 2), out=out)
    softcapped(out, cap)


def _own(weights: Tensor, q_own: Tensor, p: int) -> Tensor:
    """The part of weights on own tokens (kv_heads * rows, g * width, width)."""
    return weights.view(q_own.shape[0], q_own.shape[1], -1)[:, :, p:]


def _visible(own: Tensor, shared: Tensor | None, owner: Tensor) -> Tensor:
    """Keys and values that each row sees (2, kv_heads, rows, p + width, d), its prompt's copied."""
    return own if shared is None else torch.cat((shared[:, :, owner], own), dim=3)


def _by_kernel(q: Tensor, visible: Tensor, bias: Tensor, cap: float) -> Tensor:
    kv_heads, rows, group, width, size = q.shape
    heads = q.permute(1, 0, 2, 3, 4).reshape(rows, kv_heads * group, width, size)
    k, v = visible[0].transpose(0, 1), visible[1].transpose(0, 1)
    if cap != 0.0:  # the kernel knows no cap
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.matmul(heads, k.transpose(2, 3))
        wide = scores.float() if scores.dtype == torch.bfloat16 else scores
        weights = (torch.tanh(wide / cap) * cap + bias).softmax(-1)
        capped = torch.matmul(weights.to(heads.dtype), v)
        return capped.view(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)
    if q.is_cuda and group > 1:  # with a mask and grouped heads a GPU has nothing but the kernel that makes all scores
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    attended = F.scaled_dot_product_attention(
        heads, k, v, attn_mask=bias, scale=1.0, enable_gqa=k.shape[1] < heads.shape[1]
    )
    return attended.reshape(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)


@torch.jit.ignore  # type: ignore[untyped-decorator] # TorchScript knows no changeable global
def _rows_at_once(q: Tensor, visible: Tensor, cap: float) -> int:
    """All rows for the fused kernel; where scores are made in full, as many as stay within FULL_SCORES."""
    if cap == 0.0:
        return q.shape[1]
    each = q.shape[0] * q.shape[2] * q.shape[3] * visible.shape[3]
    return max(1, FULL_SCORES // each)


def fused_attention(q: Tensor, own: Tensor, shared: Tensor | None, owner: Tensor, bias: Tensor, cap: float) -> Tensor:
    """softmax(q k^T) v by the fused kernel. owner (rows,): which of the prompts each row continues."""
    visible = _visible(own, shared, owner)
    step = _rows_at_once(q, visible, cap)
    if step >= q.shape[1]:
        return _by_kernel(q, visible, bias, cap)
    parts: list[Tensor] = []
    for at in range(0, q.shape[1], step):
        of_rows = bias if bias.shape[0] == 1 else bias[at : at + step]
        parts.append(_by_kernel(q[:, at : at + step], visible[:, :, at : at + step], of_rows, cap))
    return torch.cat(parts, dim=1)


@torch.jit.ignore  # type: ignore[untyped-decorator] # TorchScript has no gradients inside a function
def fused_attention_backward(
    q: Tensor, own: Tensor, shared: Tensor | None, owner: Tensor, bias: Tensor, grad_out: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The fused kernel once more: what it keeps for its own backward pass is small."""
    visible = _visible(own, shared, owner)
    step, found = _rows_at_once(q, visible, cap), []
    for at in range(0, q.shape[1], step):
        with torch.enable_grad():
            leaves = [q[:, at : at + step].detach(), visible[:, :, at : at + step].detach()]
            leaves = [leaf.requires_grad_() for leaf in leaves]
            of_rows = bias if bias.shape[0] == 1 else bias[at : at + step]
            again = _by_kernel(leaves[0], leaves[1], of_rows, cap)
        found.append(torch.autograd.grad(again, leaves, grad_out[:, at : at + step]))
    grad_q, grad_seen = (
        found[0] if len(found) == 1 else (torch.cat([f[0] for f in found], 1), torch.cat([f[1] for f in found], 2))
    )
    if shared is None:
        return grad_q, grad_seen, None
    p, wide = shared.shape[3], torch.promote_types(q.dtype, torch.float32)
    grad_shared = torch.zeros(shared.shape, dtype=wide, device=q.device)
    grad_shared.index_add_(2, owner, grad_seen[:, :, :, :p].to(wide))
    return grad_q, grad_seen[:, :, :, p:], grad_shared
