"""Which tokens see which (prompts, and completions that share a prompt), and softmax(q k^T) v of one slab of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.common.round_memory import FULL_SCORES
from sapo_backends.torch_backend.ops import apply_rope, apply_softcap
from sapo_backends.torch_backend.packing import SequenceSlab
from sapo_backends.torch_backend.runtime import on_cpu

# softmax(q k^T) v of one slab, over its own tokens and those of the prompts it continues, and its gradients.
#
# Queries are (kv_heads, rows, g, width, d), scaled, with g queries per key; own keys and values (2, kv_heads, rows,
# width, d); those of the prompts (2, kv_heads, prompts, p, d), or None. bias: -inf where a token does not see, else 0;
# with `full_attention` it is (width, width), over own tokens only, which all see one prompt; else (1 or rows, 1,
# width, p + width). Everything here can be TorchScript (runtime.py).


def materialises_scores(device: torch.device, scores: int) -> bool:
    """Whether this many scores are materialised in full."""
    return device.type == "cpu" and scores <= FULL_SCORES


def full_attention(
    q: Tensor, own: Tensor, shared: Tensor | None, bias: Tensor, beyond: Tensor | None, cap: float
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T) v in the shape of q, and the softmax (kv_heads, rows * g * width, p + width).

    beyond (width, p): -inf on the prompt tokens that are outside the window, if there are any. cap: see
    ops.apply_softcap.
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
    """Gradients of q, own and shared, given grad_out, the gradient of the result of `full_attention`."""
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
        # Outside the window the gradient is already 0, whatever the derivative of the unused score.
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
    """q k^T for each index of the first axis, capped, written into out."""
    torch.bmm(q, k.transpose(1, 2), out=out)
    apply_softcap(out, cap)


def _own(weights: Tensor, q_own: Tensor, p: int) -> Tensor:
    """The part of weights on own tokens (kv_heads * rows, g * width, width)."""
    return weights.view(q_own.shape[0], q_own.shape[1], -1)[:, :, p:]


def _visible(own: Tensor, shared: Tensor | None, owner: Tensor) -> Tensor:
    """Keys and values that each row sees (2, kv_heads, rows, p + width, d), with its prompt's copied."""
    return own if shared is None else torch.cat((shared[:, :, owner], own), dim=3)


def _by_kernel(q: Tensor, visible: Tensor, bias: Tensor, cap: float) -> Tensor:
    kv_heads, rows, group, width, size = q.shape
    heads = q.permute(1, 0, 2, 3, 4).reshape(rows, kv_heads * group, width, size)
    k, v = visible[0].transpose(0, 1), visible[1].transpose(0, 1)
    if cap != 0.0:  # the kernel does not support a cap
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.matmul(heads, k.transpose(2, 3))
        wide = scores.float() if scores.dtype == torch.bfloat16 else scores
        weights = (torch.tanh(wide / cap) * cap + bias).softmax(-1)
        capped = torch.matmul(weights.to(heads.dtype), v)
        return capped.view(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)
    if q.is_cuda and group > 1:  # with a mask and grouped heads, GPUs only have the kernel that materialises all scores
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    attended = F.scaled_dot_product_attention(
        heads, k, v, attn_mask=bias, scale=1.0, enable_gqa=k.shape[1] < heads.shape[1]
    )
    return attended.reshape(rows, kv_heads, group, width, size).permute(1, 0, 2, 3, 4)


@torch.jit.ignore  # type: ignore[untyped-decorator] # TorchScript knows no changeable global
def _rows_at_once(q: Tensor, visible: Tensor, cap: float) -> int:
    """All rows for the fused kernel; where scores are materialised, as many rows as stay within FULL_SCORES."""
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
    """The fused kernel computed again: what it keeps for its own backward pass is small."""
    visible = _visible(own, shared, owner)
    step, parts = _rows_at_once(q, visible, cap), []
    for at in range(0, q.shape[1], step):
        with torch.enable_grad():
            leaves = [q[:, at : at + step].detach(), visible[:, :, at : at + step].detach()]
            leaves = [leaf.requires_grad_() for leaf in leaves]
            of_rows = bias if bias.shape[0] == 1 else bias[at : at + step]
            again = _by_kernel(leaves[0], leaves[1], of_rows, cap)
        parts.append(torch.autograd.grad(again, leaves, grad_out[:, at : at + step]))
    grad_q, grad_seen = (
        parts[0] if len(parts) == 1 else (torch.cat([f[0] for f in parts], 1), torch.cat([f[1] for f in parts], 2))
    )
    if shared is None:
        return grad_q, grad_seen, None
    p, wide = shared.shape[3], torch.promote_types(q.dtype, torch.float32)
    grad_shared = torch.zeros(shared.shape, dtype=wide, device=q.device)
    grad_shared.index_add_(2, owner, grad_seen[:, :, :, :p].to(wide))
    return grad_q, grad_seen[:, :, :, p:], grad_shared


# Which tokens see which: prompts, and completions that share a prompt. Decoding is in kv_cache.py.
#
# Attention takes the projections of N flat tokens as they come out of one matrix product: rows (N, heads + 2 kv_heads,
# d), the queries, keys and values of each token, not yet rotated. It returns (N, heads * d), 0 for tokens outside all
# slabs. All slabs of a layer are one function for TorchScript (runtime.py): they make up most of an update's
# operations.


class ScriptSlab(NamedTuple):
    """A slab as TorchScript sees it: see packing.SequenceSlab; beyond: see full_attention.

    sees: -1 for prompts. cos, sin (rows, 1, width, d): the angles of its tokens, in the compute type: products of
    ever-changing shapes are float32 on a CPU, see full_attention.
    """

    first: int
    end: int
    rows: int
    width: int
    sees: int
    plain: bool
    places: Tensor | None
    owner: Tensor
    cos: Tensor
    sin: Tensor
    bias: Tensor
    beyond: Tensor | None

    @classmethod
    def of(cls, slab: SequenceSlab, heads: int, cos: Tensor, sin: Tensor, window: int) -> "ScriptSlab":
        """cos, sin (N, 1, d): as ops.RopeTable gives them. window: number of tokens that are seen, 0 for all."""
        in_full = materialises_scores(cos.device, slab.rows * heads * slab.width * slab.seen)
        kind = torch.promote_types(cos.dtype, torch.float32) if in_full else cos.dtype
        bias = slab.causal(kind, window) if in_full else slab.bias(kind, window)
        beyond = slab.beyond(kind, window) if in_full else None
        cos, sin = (slab.padded(x[slab.first : slab.end]).to(kind).transpose(1, 2).contiguous() for x in (cos, sin))
        shape = slab.first, slab.end, slab.rows, slab.width
        sees = -1 if slab.sees is None else slab.sees
        return cls(*shape, sees, in_full, slab.places, slab.owner, cos, sin, bias, beyond)


class ScoreScaling(NamedTuple):
    """scale: of scores. cap: c in c tanh(x / c) of them, 0 for none."""

    scale: float
    cap: float


def _padded(x: Tensor, slab: ScriptSlab) -> Tensor:
    """(count, h, d) -> (rows, width, h, d), 0 in the padding."""
    places = slab.places
    if places is not None:
        x = x.new_zeros([slab.rows * slab.width, x.shape[1], x.shape[2]]).index_copy_(0, places, x)
    return x.view(slab.rows, slab.width, x.shape[1], x.shape[2])


def _unpadded(padded: Tensor, slab: ScriptSlab, out: Tensor) -> None:
    """Write (rows, width, h, d) without padding into out (count, h, d); does nothing if that is the same memory
    already."""
    places = slab.places
    if places is not None:
        torch.index_select(padded.flatten(0, 1), 0, places, out=out)


def _out_view(out: Tensor, slab: ScriptSlab) -> Tensor:
    """Where to write (rows, width, h, d): out (count, h, d) itself, or separate memory if rows are padded."""
    if slab.places is None:
        return out.view(slab.rows, slab.width, out.shape[1], out.shape[2])
    return out.new_empty([slab.rows, slab.width, out.shape[1], out.shape[2]])


def _queries(tokens: Tensor, kv_heads: int) -> Tensor:
    """(rows, width, heads, d) as (kv_heads, rows, g, width, d), the same memory."""
    rows, width, heads, size = tokens.shape
    return tokens.view(rows, width, kv_heads, heads // kv_heads, size).permute(2, 0, 3, 1, 4)


def _keys_values(tokens: Tensor, kv_heads: int) -> Tensor:
    """(rows, width, 2 kv_heads, d) as (2, kv_heads, rows, width, d), the same memory."""
    rows, width, _, size = tokens.shape
    return tokens.view(rows, width, 2, kv_heads, size).permute(2, 3, 0, 1, 4)


def _by_head(x: Tensor, like: Tensor) -> Tensor:
    """A contiguous copy in the type of `like`."""
    return torch.empty(x.shape, dtype=like.dtype, device=x.device).copy_(x)


def attend_slabs(rows: Tensor, heads: int, slabs: list[ScriptSlab], style: ScoreScaling) -> tuple[Tensor, list[Tensor]]:
    """The result, and for each slab its queries, its keys and values, and the softmax if it was materialised."""
    kv_heads, size = (rows.shape[1] - heads) // 2, rows.shape[2]
    result = rows.new_empty([rows.shape[0], heads, size])
    result[slabs[-1].end :].zero_()
    saved: list[Tensor] = []
    for slab in slabs:
        own = _padded(rows[slab.first : slab.end], slab)
        q = _by_head(_queries(own[:, :, :heads], kv_heads), slab.cos)
        kv = _by_head(_keys_values(own[:, :, heads:], kv_heads), slab.cos)
        apply_rope(q, slab.cos, slab.sin)
        apply_rope(kv[0], slab.cos[:, 0], slab.sin[:, 0])
        q.mul_(style.scale)
        shared: Tensor | None = None
        if slab.sees >= 0:
            shared = saved[3 * slab.sees + 1].to(q.dtype)
        if slab.plain:
            attended, weights = full_attention(q, kv, shared, slab.bias, slab.beyond, style.cap)
        else:
            attended = fused_attention(q, kv, shared, slab.owner, slab.bias, style.cap)
            weights = q.new_empty([0])
        saved += [q, kv, weights]
        out = result[slab.first : slab.end]
        view = _out_view(out, slab)
        _queries(view, kv_heads).copy_(attended)
        _unpadded(view, slab, out)
    return result.flatten(1), saved


def attend_backward(grads: Tensor, saved: list[Tensor], slabs: list[ScriptSlab], style: ScoreScaling) -> Tensor:
    """The gradient of the rows, given that of the result (N, heads * d) and what `attend_slabs` saved."""
    kv_heads, group, size = saved[0].shape[0], saved[0].shape[2], saved[0].shape[4]
    heads = kv_heads * group
    grads = grads.view(-1, heads, size)
    result = grads.new_empty([grads.shape[0], heads + 2 * kv_heads, size])
    result[slabs[-1].end :].zero_()
    grad_shared: dict[int, Tensor] = {}  # from the completions into their prompts' keys and values
    for back in range(len(slabs)):
        number = len(slabs) - 1 - back
        slab, q, kv = slabs[number], saved[3 * number], saved[3 * number + 1]
        grad_out = _by_head(_queries(_padded(grads[slab.first : slab.end], slab), kv_heads), q)
        shared: Tensor | None = None
        if slab.sees >= 0:
            shared = saved[3 * slab.sees + 1].to(q.dtype)
        if slab.plain:
            weights = saved[3 * number + 2]
            grad_q, grad_kv, grad_seen = full_attention_backward(q, kv, shared, weights, grad_out, style.cap)
        else:
            grad_q, grad_kv, grad_seen = fused_attention_backward(
                q, kv, shared, slab.owner, slab.bias, grad_out, style.cap
            )
        if grad_seen is not None:
            if slab.sees in grad_shared:
                grad_shared[slab.sees].add_(grad_seen)
            else:
                grad_shared[slab.sees] = grad_seen
        if number in grad_shared:
            grad_kv = grad_kv + grad_shared[number]
        apply_rope(grad_q.mul_(style.scale), slab.cos, -slab.sin)
        apply_rope(grad_kv[0], slab.cos[:, 0], -slab.sin[:, 0])
        out = result[slab.first : slab.end]
        view = _out_view(out, slab)
        _queries(view[:, :, :heads], kv_heads).copy_(grad_q)
        _keys_values(view[:, :, heads:], kv_heads).copy_(grad_kv)
        _unpadded(view, slab, out)
    return result


@dataclass(slots=True)
class _Slabs:
    """Slabs for one pass through a model: layers of the same kind share angles and biases. longest: greater than every
    position."""

    spec: DecoderSpec
    longest: int
    slabs: Sequence[SequenceSlab]
    _known: dict[tuple[int, int], list[ScriptSlab]] = field(default_factory=dict)

    def of(self, layer: int, heads: int, cos: Tensor, sin: Tensor) -> list[ScriptSlab]:
        """The slabs as a layer sees them."""
        kind = self.spec.layer_rope[layer], self.spec.window_of(layer, self.longest)
        if kind not in self._known:
            self._known[kind] = [ScriptSlab.of(slab, heads, cos, sin, kind[1]) for slab in self.slabs]
        return self._known[kind]

    @property
    def style(self) -> ScoreScaling:
        """The score scaling of every layer."""
        return ScoreScaling(self.spec.scale, self.spec.softcap)


class PromptAttention:
    """Causal attention over prompts, without gradients. keys_values: of every layer (2, prompts, kv_heads, p, d),
    padded on the right. After the last layer only each prompt's last token is needed, so only that has a result (0
    for the others)."""

    def __init__(self, spec: DecoderSpec, slabs: Sequence[SequenceSlab], places: Tensor, lengths: Tensor) -> None:
        """places (prompts, p): the flat token at each place; lengths (prompts,)."""
        self.places, self.lengths, self.keys_values = places, lengths, list[Tensor]()
        self._spec, self._slabs = spec, _Slabs(spec, places.shape[1], slabs)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See decoder.AttentionFunction."""
        last, both = layer == self._spec.layers - 1, (heads + rows.shape[1]) // 2
        if not last:
            # A few calls per batch: not worth the time of compiling them as TorchScript.
            result, _ = attend_slabs(rows, heads, self._slabs.of(layer, heads, cos, sin), self._slabs.style)
        apply_rope(rows[:, heads:both], cos, sin)
        keys_values = rows[:, heads:][self.places]  # (prompts, p, 2 kv_heads, d)
        by_head = keys_values.view(*self.places.shape, 2, both - heads, -1).permute(2, 0, 3, 1, 4)
        self.keys_values.append(by_head.contiguous())
        return self._of_last_tokens(layer, rows[:, :heads], cos, sin) if last else result

    def _of_last_tokens(self, layer: int, queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """queries (N, heads, d), not rotated -> (N, heads * d)."""
        ends = self.places.gather(1, self.lengths[:, None] - 1)[:, 0]
        q, (keys, values) = queries[ends], self.keys_values[-1]
        apply_rope(q, cos[ends], sin[ends])
        q = q.view(len(q), keys.shape[1], -1, q.shape[2])  # (prompts, kv_heads, g, d)
        slot, window = (
            torch.arange(self.places.shape[1], device=q.device),
            self._spec.window_of(layer, len(self.places[0])),
        )
        visible = slot < self.lengths[:, None]
        if window:
            visible &= slot >= self.lengths[:, None] - window
        scale, cap = self._slabs.style
        if cap == 0.0:
            attended = torch.nn.functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=visible[:, None, None], scale=scale
            )
        else:
            scores = apply_softcap((q @ keys.transpose(2, 3)).float() * scale, cap)
            weights = scores.masked_fill_(~visible[:, None, None], float("-inf")).softmax(-1)
            attended = weights.to(values.dtype) @ values
        result = queries.new_zeros(queries.shape[0], queries.shape[1] * queries.shape[2])
        return result.index_copy_(0, ends, attended.flatten(1))


class GroupAttention:
    """Prompts, and completions that each continue one of them: a prompt is computed once for all its completions. Made
    for one pass through a model."""

    def __init__(self, spec: DecoderSpec, longest: int, slabs: Sequence[SequenceSlab]) -> None:
        """longest: greater than every position."""
        self._slabs = _Slabs(spec, longest, slabs)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See decoder.AttentionFunction."""
        slabs = self._slabs.of(layer, heads, cos, sin)
        result: Tensor = _GroupAttention.apply(rows, heads, slabs, self._slabs.style)  # type: ignore[no-untyped-call]
        return result


class _GroupAttention(torch.autograd.Function):
    """All attention of a layer together with the rotation, so that their gradient is a single tensor, written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, heads: int, slabs: list[ScriptSlab], style: ScoreScaling) -> Tensor:
        result, saved = on_cpu(attend_slabs, rows)(rows, heads, slabs, style)
        ctx.save_for_backward(*saved)
        ctx.slabs, ctx.style = slabs, style
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        grads = gradients[0]
        grads_in = on_cpu(attend_backward, grads)(grads, list(ctx.saved_tensors), ctx.slabs, ctx.style)
        return grads_in, None, None, None
