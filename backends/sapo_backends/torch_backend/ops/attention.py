"""Which tokens see which: prompts, and completions that share a prompt. Decoding is in cache.py.

An attention takes the projections of N flat tokens as they come out of one matrix product: rows (N, heads +
2 kv_heads, d), queries, keys and values of each token, not yet rotated. It gives (N, heads * d), 0 for tokens of no
slab. All slabs of a layer are one function for TorchScript (scripting.py): they are most of an update's operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sapo_backends.torch_backend.ops.fused_ops import rotate
from sapo_backends.torch_backend.ops.packing import Slab
from sapo_backends.torch_backend.ops.slab_attention import fused, fused_backward, is_plain, plain, plain_backward
from sapo_backends.torch_backend.runtime.torchscript import on_cpu


class Piece(NamedTuple):
    """A slab as TorchScript knows it: see packing.Slab.

    sees: -1 for prompts. cos, sin (rows, 1, width, d): the angles of its tokens, in the type to compute in: products of
    ever-changing shapes are float32 on a CPU, see mixture.
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

    @classmethod
    def of(cls, slab: Slab, heads: int, cos: Tensor, sin: Tensor) -> "Piece":
        """cos, sin (N, 1, d): as rope.RopeTable gives them."""
        in_full = is_plain(cos.device, slab.rows * heads * slab.width * slab.seen)
        kind = torch.promote_types(cos.dtype, torch.float32) if in_full else cos.dtype
        bias = slab.causal(kind) if in_full else slab.bias(kind)
        cos, sin = (slab.padded(x[slab.first : slab.end]).to(kind).transpose(1, 2).contiguous() for x in (cos, sin))
        shape = slab.first, slab.end, slab.rows, slab.width
        return cls(*shape, -1 if slab.sees is None else slab.sees, in_full, slab.places, slab.owner, cos, sin, bias)


def _padded(x: Tensor, piece: Piece) -> Tensor:
    """(count, h, d) -> (rows, width, h, d), 0 in the padding."""
    places = piece.places
    if places is not None:
        x = x.new_zeros([piece.rows * piece.width, x.shape[1], x.shape[2]]).index_copy_(0, places, x)
    return x.view(piece.rows, piece.width, x.shape[1], x.shape[2])


def _unpadded(padded: Tensor, piece: Piece, out: Tensor) -> None:
    """(rows, width, h, d) -> into out (count, h, d), which it is already when nothing is padded."""
    places = piece.places
    if places is not None:
        torch.index_select(padded.flatten(0, 1), 0, places, out=out)


def _room(out: Tensor, piece: Piece) -> Tensor:
    """Where to write (rows, width, h, d): out (count, h, d) itself, or space of its own when rows are padded."""
    if piece.places is None:
        return out.view(piece.rows, piece.width, out.shape[1], out.shape[2])
    return out.new_empty([piece.rows, piece.width, out.shape[1], out.shape[2]])


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


def attend(rows: Tensor, heads: int, pieces: list[Piece]) -> tuple[Tensor, list[Tensor]]:
    """The result, and for each piece its queries, its keys and values, and the softmax if that was made in full."""
    kv_heads, size = (rows.shape[1] - heads) // 2, rows.shape[2]
    result = rows.new_empty([rows.shape[0], heads, size])
    result[pieces[-1].end :].zero_()
    kept: list[Tensor] = []
    for piece in pieces:
        own = _padded(rows[piece.first : piece.end], piece)
        q = _by_head(_queries(own[:, :, :heads], kv_heads), piece.cos)
        kv = _by_head(_keys_values(own[:, :, heads:], kv_heads), piece.cos)
        rotate(q, piece.cos, piece.sin)
        rotate(kv[0], piece.cos[:, 0], piece.sin[:, 0])
        q.mul_(float(size) ** -0.5)
        shared: Tensor | None = None
        if piece.sees >= 0:
            shared = kept[3 * piece.sees + 1].to(q.dtype)
        if piece.plain:
            mixed, weights = plain(q, kv, shared, piece.bias)
        else:
            mixed, weights = fused(q, kv, shared, piece.owner, piece.bias), q.new_empty([0])
        kept += [q, kv, weights]
        out = result[piece.first : piece.end]
        room = _room(out, piece)
        _queries(room, kv_heads).copy_(mixed)
        _unpadded(room, piece, out)
    return result.flatten(1), kept


def attend_backward(slopes: Tensor, kept: list[Tensor], pieces: list[Piece]) -> Tensor:
    """The gradient by rows from that by the result, (N, heads * d), and what `attend` kept."""
    kv_heads, group, size = kept[0].shape[0], kept[0].shape[2], kept[0].shape[4]
    heads = kv_heads * group
    slopes = slopes.view(-1, heads, size)
    result = slopes.new_empty([slopes.shape[0], heads + 2 * kv_heads, size])
    result[pieces[-1].end :].zero_()
    into_shared: dict[int, Tensor] = {}  # from the completions into their prompts' keys and values
    for back in range(len(pieces)):
        number = len(pieces) - 1 - back
        piece, q, kv = pieces[number], kept[3 * number], kept[3 * number + 1]
        slope = _by_head(_queries(_padded(slopes[piece.first : piece.end], piece), kv_heads), q)
        shared: Tensor | None = None
        if piece.sees >= 0:
            shared = kept[3 * piece.sees + 1].to(q.dtype)
        if piece.plain:
            into_q, into_kv, into_seen = plain_backward(q, kv, shared, kept[3 * number + 2], slope)
        else:
            into_q, into_kv, into_seen = fused_backward(q, kv, shared, piece.owner, piece.bias, slope)
        if into_seen is not None:
            if piece.sees in into_shared:
                into_shared[piece.sees].add_(into_seen)
            else:
                into_shared[piece.sees] = into_seen
        if number in into_shared:
            into_kv = into_kv + into_shared[number]
        rotate(into_q.mul_(float(size) ** -0.5), piece.cos, -piece.sin)
        rotate(into_kv[0], piece.cos[:, 0], -piece.sin[:, 0])
        out = result[piece.first : piece.end]
        room = _room(out, piece)
        _queries(room[:, :, :heads], kv_heads).copy_(into_q)
        _keys_values(room[:, :, heads:], kv_heads).copy_(into_kv)
        _unpadded(room, piece, out)
    return result


@dataclass(slots=True)
class PromptAttention:
    """Causal attention over prompts, without gradients. keys_values: of every layer (2, prompts, kv_heads, p, d), padded on
    the right; places (prompts, p): which flat token is whose; lengths (prompts,). layers: of the model; after the last of
    them only a prompt's last token is of use, and only of it is there a result (0 for the others)."""

    slabs: Sequence[Slab]
    places: Tensor
    lengths: Tensor
    layers: int
    keys_values: list[Tensor] = field(default_factory=list)
    _pieces: list[Piece] = field(default_factory=list)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if not self._pieces:
            self._pieces = [Piece.of(slab, heads, cos, sin) for slab in self.slabs]
        last, both = layer == self.layers - 1, (heads + rows.shape[1]) // 2
        if not last:
            result, _ = attend(rows, heads, self._pieces)  # a few calls a batch: not worth the time of scripting them
        rotate(rows[:, heads:both], cos, sin)
        kept = rows[:, heads:][self.places]  # (prompts, p, 2 kv_heads, d)
        by_head = kept.view(*self.places.shape, 2, both - heads, -1).permute(2, 0, 3, 1, 4)
        self.keys_values.append(by_head.contiguous())
        return self._of_last_tokens(rows[:, :heads], cos, sin) if last else result

    def _of_last_tokens(self, queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """queries (N, heads, d), not rotated -> (N, heads * d)."""
        ends = self.places.gather(1, self.lengths[:, None] - 1)[:, 0]
        q, (keys, values) = queries[ends], self.keys_values[-1]
        rotate(q, cos[ends], sin[ends])
        q = q.view(len(q), keys.shape[1], -1, q.shape[2])  # (prompts, kv_heads, g, d)
        real = torch.arange(self.places.shape[1], device=q.device) < self.lengths[:, None]
        mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=real[:, None, None])
        result = queries.new_zeros(queries.shape[0], queries.shape[1] * queries.shape[2])
        return result.index_copy_(0, ends, mixed.flatten(1))


@dataclass(slots=True)
class GroupAttention:
    """Prompts, and completions that each continue one of them: a prompt is computed once for all its completions. Made for
    one pass through a model: every layer has the same angles."""

    slabs: Sequence[Slab]
    _pieces: list[Piece] = field(default_factory=list)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if not self._pieces:
            self._pieces = [Piece.of(slab, heads, cos, sin) for slab in self.slabs]
        result: Tensor = _GroupAttention.apply(rows, heads, self._pieces)  # type: ignore[no-untyped-call]
        return result


class _GroupAttention(torch.autograd.Function):
    """All attentions of a layer with the rotation, so that their gradient is one tensor, written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, heads: int, pieces: list[Piece]) -> Tensor:
        result, kept = on_cpu(attend, rows)(rows, heads, pieces)
        ctx.save_for_backward(*kept)
        ctx.pieces = pieces
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        slopes = gradients[0]
        return on_cpu(attend_backward, slopes)(slopes, list(ctx.saved_tensors), ctx.pieces), None, None
