"""softmax(q k^T) v of one slab, over its own tokens and those of the prompts it continues, and its gradients.

Queries are (kv_heads, rows, g, width, d), scaled, with g queries a key; own keys and values (2, kv_heads, rows, width,
d); those of the prompts (2, kv_heads, prompts, p, d), or None. bias: -inf where a token does not see, else 0; with
`full_attention` (width, width) over own tokens alone, which all see one prompt, else (1 or rows, 1, width, p + width).
Everything here can be TorchScript (runtime/torchscript.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FULL_SCORES = 1 << 23
"""On a CPU, a slab's scores of up to this many elements are made in full, in float32: batched matrix products beat the
fused kernel several times over, and in float32 they are not compiled for each shape. Longer sequences take the fused
kernel, which needs less memory."""


def materialises_scores(device: torch.device, scores: int) -> bool:
    """Whether so many scores are made in full."""
    return device.type == "cpu" and scores <= FULL_SCORES


def full_attention(q: Tensor, own: Tensor, shared: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k^T) v in the shape of q, and the softmax (kv_heads, rows * g * width, p + width)."""
    kv_heads, rows, group, width, size = q.shape
    q_own, k_own, v_own = q.view(-1, group * width, size), own[0].flatten(0, 1), own[1].flatten(0, 1)
    p = 0 if shared is None else shared.shape[3]
    weights = q.new_empty([kv_heads, rows * group * width, p + width])
    own_weights = _own(weights, q_own, p)
    torch.bmm(q_own, k_own.transpose(1, 2), out=own_weights)
    own_weights.view(kv_heads * rows, group, width, width).add_(bias)
    if shared is not None:
        torch.bmm(q.flatten(1, 3), shared[0, :, 0].transpose(1, 2), out=weights[:, :, :p])
    torch.softmax(weights, dim=-1, out=weights)
    attended = torch.bmm(own_weights, v_own)
    if shared is not None:
        attended.view(kv_heads, -1, size).baddbmm_(weights[:, :, :p], shared[1, :, 0])
    return attended.view_as(q), weights


def full_attention_backward(
    q: Tensor, own: Tensor, shared: Tensor | None, weights: Tensor, grad_out: Tensor
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


def _own(weights: Tensor, q_own: Tensor, p: int) -> Tensor:
    """The part of weights on own tokens (kv_heads * rows, g * width, width)."""
    return weights.view(q_own.shape[0], q_own.shape[1], -1)[:, :, p:]


def _visible(own: Tensor, shared: Tensor | None, owner: Tensor) -> Tensor:
    """Keys and values that each row sees (2, kv_heads, rows, p + width, d), its prompt's copied."""
    return own if shared is None else torch.cat((shared[:, :, owner], own), dim=3)


def _by_kernel(q: Tensor, visible: Tensor, bias: Tensor) -> Tensor:
    kv_heads, rows, group, width, size = q.shape
    heads = q.permute(1, 0, 2, 3, 4).reshape(rows, kv_heads * group, width, size)
    k, v = visible[0].transpose(0, 1), visible[1].transpose(0, 1)
    attended = F.scaled_dot_product_attention(heads, k, v, attn_mask=bias, scale=1.0, enable_gqa=group > 1)
    return attended.reshape(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)


def fused_attention(q: Tensor, own: Tensor, shared: Tensor | None, owner: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T) v by the fused kernel. owner (rows,): which of the prompts each row continues."""
    return _by_kernel(q, _visible(own, shared, owner), bias)


@torch.jit.ignore  # type: ignore[untyped-decorator] # TorchScript has no gradients inside a function
def fused_attention_backward(
    q: Tensor, own: Tensor, shared: Tensor | None, owner: Tensor, bias: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The fused kernel once more: what it keeps for its own backward pass is small."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, _visible(own, shared, owner))]
        again = _by_kernel(leaves[0], leaves[1], bias)
    grad_q, grad_seen = torch.autograd.grad(again, leaves, grad_out)
    if shared is None:
        return grad_q, grad_seen, None
    p, wide = shared.shape[3], torch.promote_types(q.dtype, torch.float32)
    grad_shared = torch.zeros(shared.shape, dtype=wide, device=q.device)
    grad_shared.index_add_(2, owner, grad_seen[:, :, :, :p].to(wide))
    return grad_q, grad_seen[:, :, :, p:], grad_shared
