"""Which tokens see which: prompts, and completions that share a prompt. Decoding is in decode/kv_cache.py.

An attention takes the projections of N flat tokens as they come out of one matrix product: rows (N, heads + 2 kv_heads,
d), queries, keys and values of each token, not yet rotated. It gives (N, heads * d), 0 for tokens of no slab. All slabs
of a layer are one function for TorchScript (runtime.py): they are most of an update's operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.ops.fused_ops import rotate, softcapped
from sapo_backends.torch_backend.ops.packing import Slab
from sapo_backends.torch_backend.ops.slab_attention import (
    full_attention,
    full_attention_backward,
    fused_attention,
    fused_attention_backward,
    materialises_scores,
)
from sapo_backends.torch_backend.runtime import on_cpu


class ScriptSlab(NamedTuple):
    """A slab as TorchScript knows it: see packing.Slab; beyond: see slab_attention.full_attention.

    sees: -1 for prompts. cos, sin (rows, 1, width, d): the angles of its tokens, in the type to compute in: products of
    ever-changing shapes are float32 on a CPU, see slab_attention.full_attention.
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
    def of(cls, slab: Slab, heads: int, cos: Tensor, sin: Tensor, window: int) -> "ScriptSlab":
        """cos, sin (N, 1, d): as fused_ops.RopeTable gives them. window: tokens that are seen, 0 for all."""
        in_full = materialises_scores(cos.device, slab.rows * heads * slab.width * slab.seen)
        kind = torch.promote_types(cos.dtype, torch.float32) if in_full else cos.dtype
        bias = slab.causal(kind, window) if in_full else slab.bias(kind, window)
        beyond = slab.beyond(kind, window) if in_full else None
        cos, sin = (slab.padded(x[slab.first : slab.end]).to(kind).transpose(1, 2).contiguous() for x in (cos, sin))
        shape = slab.first, slab.end, slab.rows, slab.width
        sees = -1 if slab.sees is None else slab.sees
        return cls(*shape, sees, in_full, slab.places, slab.owner, cos, sin, bias, beyond)


class Style(NamedTuple):
    """scale: of scores. cap: c tanh(x / c) of them, 0 for none."""

    scale: float
    cap: float


def _padded(x: Tensor, slab: ScriptSlab) -> Tensor:
    """(count, h, d) -> (rows, width, h, d), 0 in the padding."""
    places = slab.places
    if places is not None:
        x = x.new_zeros([slab.rows * slab.width, x.shape[1], x.shape[2]]).index_copy_(0, places, x)
    return x.view(slab.rows, slab.width, x.shape[1], x.shape[2])


def _unpadded(padded: Tensor, slab: ScriptSlab, out: Tensor) -> None:
    """(rows, width, h, d) -> into out (count, h, d), which it is already when nothing is padded."""
    places = slab.places
    if places is not None:
        torch.index_select(padded.flatten(0, 1), 0, places, out=out)


def _out_view(out: Tensor, slab: ScriptSlab) -> Tensor:
    """Where to write (rows, width, h, d): out (count, h, d) itself, or space of its own when rows are padded."""
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
    """A copy, contiguous, in the type of `like`."""
    return torch.empty(x.shape, dtype=like.dtype, device=x.device).copy_(x)


def attend(rows: Tensor, heads: int, slabs: list[ScriptSlab], style: Style) -> tuple[Tensor, list[Tensor]]:
    """The result, and for each slab its queries, its keys and values, and the softmax if that was made in full."""
    kv_heads, size = (rows.shape[1] - heads) // 2, rows.shape[2]
    result = rows.new_empty([rows.shape[0], heads, size])
    result[slabs[-1].end :].zero_()
    saved: list[Tensor] = []
    for slab in slabs:
        own = _padded(rows[slab.first : slab.end], slab)
        q = _by_head(_queries(own[:, :, :heads], kv_heads), slab.cos)
        kv = _by_head(_keys_values(own[:, :, heads:], kv_heads), slab.cos)
        rotate(q, slab.cos, slab.sin)
        rotate(kv[0], slab.cos[:, 0], slab.sin[:, 0])
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


def attend_backward(grads: Tensor, saved: list[Tensor], slabs: list[ScriptSlab], style: Style) -> Tensor:
    """The gradient by rows from that by the result, (N, heads * d), and what `attend` saved."""
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
        rotate(grad_q.mul_(style.scale), slab.cos, -slab.sin)
        rotate(grad_kv[0], slab.cos[:, 0], -slab.sin[:, 0])
        out = result[slab.first : slab.end]
        view = _out_view(out, slab)
        _queries(view[:, :, :heads], kv_heads).copy_(grad_q)
        _keys_values(view[:, :, heads:], kv_heads).copy_(grad_kv)
        _unpadded(view, slab, out)
    return result


@dataclass(slots=True)
class _Slabs:
    """Slabs for one pass through a model: layers of the same kind have the same angles and biases. longest: beyond every
    position."""

    spec: DecoderSpec
    longest: int
    slabs: Sequence[Slab]
    _known: dict[tuple[int, int], list[ScriptSlab]] = field(default_factory=dict)

    def of(self, layer: int, heads: int, cos: Tensor, sin: Tensor) -> list[ScriptSlab]:
        """As a layer sees them."""
        kind = self.spec.layer_rope[layer], self.spec.window_of(layer, self.longest)
        if kind not in self._known:
            self._known[kind] = [ScriptSlab.of(slab, heads, cos, sin, kind[1]) for slab in self.slabs]
        return self._known[kind]

    @property
    def style(self) -> Style:
        """Of every layer."""
        return Style(self.spec.scale, self.spec.softcap)


class PromptAttention:
    """Causal attention over prompts, without gradients. keys_values: of every layer (2, prompts, kv_heads, p, d),
    padded on the right. After the last layer only a prompt's last token is of use, and only of it is there a result (0
    for the others)."""

    def __init__(self, spec: DecoderSpec, slabs: Sequence[Slab], places: Tensor, lengths: Tensor) -> None:
        """places (prompts, p): which flat token is whose; lengths (prompts,)."""
        self.places, self.lengths, self.keys_values = places, lengths, list[Tensor]()
        self._spec, self._slabs = spec, _Slabs(spec, places.shape[1], slabs)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See decoder.Attend."""
        last, both = layer == self._spec.layers - 1, (heads + rows.shape[1]) // 2
        if not last:
            # A few calls a batch: not worth the time of compiling them as TorchScript.
            result, _ = attend(rows, heads, self._slabs.of(layer, heads, cos, sin), self._slabs.style)
        rotate(rows[:, heads:both], cos, sin)
        keys_values = rows[:, heads:][self.places]  # (prompts, p, 2 kv_heads, d)
        by_head = keys_values.view(*self.places.shape, 2, both - heads, -1).permute(2, 0, 3, 1, 4)
        self.keys_values.append(by_head.contiguous())
        return self._of_last_tokens(layer, rows[:, :heads], cos, sin) if last else result

    def _of_last_tokens(self, layer: int, queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """queries (N, heads, d), not rotated -> (N, heads * d)."""
        ends = self.places.gather(1, self.lengths[:, None] - 1)[:, 0]
        q, (keys, values) = queries[ends], self.keys_values[-1]
        rotate(q, cos[ends], sin[ends])
        q = q.view(len(q), keys.shape[1], -1, q.shape[2])  # (prompts, kv_heads, g, d)
        slot, window = (
            torch.arange(self.places.shape[1], device=q.device),
            self._spec.window_of(layer, len(self.places[0])),
        )
        seen = slot < self.lengths[:, None]
        if window:
            seen &= slot >= self.lengths[:, None] - window
        scale, cap = self._slabs.style
        if cap == 0.0:
            attended = torch.nn.functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=seen[:, None, None], scale=scale
            )
        else:
            scores = softcapped((q @ keys.transpose(2, 3)).float() * scale, cap)
            weights = scores.masked_fill_(~seen[:, None, None], float("-inf")).softmax(-1)
            attended = weights.to(values.dtype) @ values
        result = queries.new_zeros(queries.shape[0], queries.shape[1] * queries.shape[2])
        return result.index_copy_(0, ends, attended.flatten(1))


class GroupAttention:
    """Prompts, and completions that each continue one of them: a prompt is computed once for all its completions. Made
    for one pass through a model."""

    def __init__(self, spec: DecoderSpec, longest: int, slabs: Sequence[Slab]) -> None:
        """longest: beyond every position."""
        self._slabs = _Slabs(spec, longest, slabs)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See decoder.Attend."""
        slabs = self._slabs.of(layer, heads, cos, sin)
        result: Tensor = _GroupAttention.apply(rows, heads, slabs, self._slabs.style)  # type: ignore[no-untyped-call]
        return result


class _GroupAttention(torch.autograd.Function):
    """All attentions of a layer with the rotation, so that their gradient is one tensor, written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, heads: int, slabs: list[ScriptSlab], style: Style) -> Tensor:
        result, saved = on_cpu(attend, rows)(rows, heads, slabs, style)
        ctx.save_for_backward(*saved)
        ctx.slabs, ctx.style = slabs, style
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        grads = gradients[0]
        found = on_cpu(attend_backward, grads)(grads, list(ctx.saved_tensors), ctx.slabs, ctx.style)
        return found, None, None, None
