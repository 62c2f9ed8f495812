"""One decode step of a whole batch as a single function that TorchScript can compile, and the types it uses."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.ops import (
    apply_rope,
    apply_softcap,
    dequantise_nf4,
    rms_norm_forward,
    silu_and_mul,
)

# The inputs of one decode step as TorchScript types: weights, caches, shapes and constants.


class AdaptedProjection(NamedTuple):
    """A linear layer, weight (out, in) or oneDNN's packed form of it, and its adapter: scale * B A x; where it is packed
    too, lora_b includes the scale.

    scales: none, or one: weight then holds the codes of projections.FourBit, (out, in / 2).
    lora_a: none, or one (parts * rank, in); lora_b: none, or one (out, parts * rank), 0 except in each part's own rank
    columns.
    """

    weight: Tensor
    bias: Tensor | None
    lora_a: list[Tensor]
    lora_b: list[Tensor]
    scale: float
    scales: list[Tensor]


class LayerWeights(NamedTuple):
    """One layer's weights. mlp: gate and up, or one fused projection. head_norms: none, or those of queries and
    keys, per head or over all heads together. norm1, norm2: before attention and MLP; after1, after2: after them. rope:
    index of its rope's tables; windowed: whether it sees only the window."""

    norm1: Tensor | None
    qkv: AdaptedProjection
    head_norms: list[Tensor]
    out: AdaptedProjection
    after1: Tensor | None
    norm2: Tensor | None
    mlp: list[AdaptedProjection]
    down: AdaptedProjection
    after2: Tensor | None
    rope: int
    windowed: bool


class LayerKVCache(NamedTuple):
    """One layer's cache for E entries of W places each; see kv_cache.KVCache.

    prompt_k (E' * kv_heads, d, p) and prompt_v (E' * kv_heads, p, d) of each length bucket of E' entries are shared by
    an entry's places; keys are transposed. completion_k (E, kv_heads, W, d, slots) and completion_v (E, kv_heads, W,
    slots, d) are those of the places' sampled tokens.
    """

    prompt_k: list[Tensor]
    prompt_v: list[Tensor]
    completion_k: Tensor
    completion_v: Tensor


class ModelConstants(NamedTuple):
    """Constants of a model; see spec.DecoderSpec. window: 0 if no text is longer."""

    norm_eps: float
    scale: float
    softcap: float
    window: int
    gelu: bool
    embed_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float


class StepShape(NamedTuple):
    """entries * width places; slot is where the new token's keys are written."""

    heads: int
    kv_heads: int
    entries: int
    width: int
    slot: int
    style: ModelConstants


class AttentionMask(NamedTuple):
    """Masks that hide tokens from layers: per length bucket (E' * kv_heads, 1, p), and for the places' own tokens
    (slots,)."""

    prompts: list[Tensor | None]
    own: Tensor | None


class OuterWeights(NamedTuple):
    """The weights outside the layers: embedding (V, hidden), last norm, unembedding, and ops.RopeTable's tables."""

    embed: Tensor
    norm: Tensor
    head: AdaptedProjection
    tables: list[tuple[Tensor, Tensor]]


# One decode step of a whole batch as a single function that TorchScript can run (runtime.py).
#
# On processors whose bfloat16 goes through oneDNN, the weights are laid out for it once per batch.


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else rms_norm_forward(x, weight, eps)[0]


def _head_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rows (M, h, d), each head normalised on its own, or, with a weight (h * d,), all together."""
    if weight.shape[0] == rows.shape[2]:
        return rms_norm_forward(rows, weight, eps)[0]
    return rms_norm_forward(rows.flatten(1), weight, eps)[0].view(rows.shape)


def _adapted(y: Tensor, x: Tensor, of: AdaptedProjection) -> Tensor:
    """y plus the adapter's contribution."""
    if len(of.lora_a) == 0:
        return y
    if of.lora_a[0].is_mkldnn:
        low: Tensor = torch.ops.mkldnn._linear_pointwise(x, of.lora_a[0], None, "none", [], "")
        both: Tensor = torch.ops.mkldnn._linear_pointwise(low, y, of.lora_b[0], None, "add")
        return both
    return y.addmm_(F.linear(x, of.lora_a[0]).mul_(of.scale), of.lora_b[0].t())


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _dequantised(codes: Tensor, scales: Tensor, like: Tensor) -> Tensor:
    return dequantise_nf4(codes, scales, like)


def _weight(x: Tensor, of: AdaptedProjection) -> Tensor:
    """The dense weight to multiply x with."""
    return of.weight if len(of.scales) == 0 else _dequantised(of.weight, of.scales[0], x)


def apply_projection(x: Tensor, of: AdaptedProjection) -> Tensor:
    """x (N, in) -> (N, out) through a projection and its adapter."""
    if of.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, of.weight, of.bias, "none", [], "")
    else:
        y = F.linear(x, _weight(x, of), of.bias)
    return _adapted(y, x, of)


def _add_linear(
    x: Tensor, of: AdaptedProjection, residual: Tensor, after: Tensor | None, style: ModelConstants
) -> Tensor:
    """residual + the projection of x, normalised by `after`, times the model's residual scale."""
    if after is not None or style.residual_scale != 1.0:
        return residual + _norm(apply_projection(x, of), after, style.norm_eps).mul_(style.residual_scale)
    if of.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, residual, of.weight, of.bias, "add")
    elif of.bias is None:
        y = torch.addmm(residual, x, _weight(x, of).t())
    else:
        y = F.linear(x, _weight(x, of), of.bias).add_(residual)
    return _adapted(y, x, of)


def gated_mlp(x: Tensor, mlp: list[AdaptedProjection], gelu: bool) -> Tensor:
    """silu(gate) * up, or with gelu."""
    if len(mlp) == 1:
        gate, up = apply_projection(x, mlp[0]).chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up) if gelu else silu_and_mul(gate, up)
    gate_of, up_of = mlp[0], mlp[1]
    silu_gate: Tensor = torch.ops.mkldnn._linear_pointwise(x, gate_of.weight, gate_of.bias, "swish", [], "")
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, silu_gate, up_of.weight, up_of.bias, "mul")
    return y


def _attention(
    q: Tensor,
    prompt_k: Tensor,
    prompt_v: Tensor,
    completion_k: Tensor,
    completion_v: Tensor,
    bias: Tensor | None,
    end: int,
    hidden: Tensor | None,
    style: ModelConstants,
) -> Tensor:
    """q (E', kv_heads, W, g, d) of the entries of one bucket -> softmax(q k^T) v of that shape.

    bias (E' * kv_heads, 1, p): 0 or -inf. end: slots of completion_k and completion_v that are read; hidden (end,): 0,
    or -inf for slots that are not filled yet or outside the window, if there are any.
    """
    entries, kv_heads, width, group, size = q.shape
    scale = style.scale
    none = q.new_empty([1, 1, 1])
    to_prompt, to_own = q.view(entries * kv_heads, width * group, size), q.view(-1, group, size)
    on_prompt = torch.baddbmm(none, to_prompt, prompt_k, beta=0, alpha=scale)  # (E' * kv_heads, W * g, p)
    apply_softcap(on_prompt, style.softcap)
    if bias is not None:
        on_prompt.add_(bias)
    on_own = torch.baddbmm(none, to_own, completion_k.narrow(2, 0, end), beta=0, alpha=scale)
    apply_softcap(on_own, style.softcap)
    if hidden is not None:
        on_own.add_(hidden)
    both = torch.cat((on_prompt, on_own.view(entries * kv_heads, width * group, end)), dim=-1).softmax(dim=-1)
    shared = prompt_k.shape[2]
    attended = torch.bmm(both.view(-1, group, shared + end).narrow(2, shared, end), completion_v.narrow(1, 0, end))
    attended.view(entries * kv_heads, width * group, size).baddbmm_(both.narrow(2, 0, shared), prompt_v)
    return attended.view(entries, kv_heads, width, group, size)


def _within_window(
    everything: AttentionMask,
    positions: Tensor,
    caches: LayerKVCache,
    ends: list[int],
    shape: StepShape,
    slot: Tensor | None,
) -> AttentionMask:
    """The mask of layers with a window, which also hides what is outside it. positions (E * W,): of the new tokens."""
    window, width, begin = shape.style.window, shape.width, 0
    prompts: list[Tensor | None] = []
    for i, end in enumerate(ends):
        first = positions[begin * width : end * width : width] - window  # (E',), the last position outside the window
        place = torch.arange(caches.prompt_k[i].shape[2], device=positions.device)
        kind = caches.completion_k.dtype
        bias = torch.zeros([end - begin, place.shape[0]], dtype=kind, device=positions.device)
        bias = bias.masked_fill_(place <= first.unsqueeze(1), float("-inf"))
        bias = bias.repeat_interleave(shape.kv_heads, 0).unsqueeze(1)
        known = everything.prompts[i]
        prompts.append(bias if known is None else bias + known)
        begin = end
    if slot is None:
        slots = torch.arange(shape.slot + 1, device=positions.device)
        beyond = slots <= shape.slot - window
    else:
        slots = torch.arange(caches.completion_k.shape[4], device=positions.device)
        beyond = slots <= slot - window
    own = torch.zeros(slots.shape, dtype=caches.completion_k.dtype, device=positions.device)
    own = own.masked_fill_(beyond, float("-inf"))
    hidden = everything.own
    return AttentionMask(prompts, own if hidden is None else own + hidden)


def decode_step(
    x: Tensor,
    angles: list[tuple[Tensor, Tensor]],
    positions: Tensor,
    layers: list[LayerWeights],
    caches: list[LayerKVCache],
    ends: list[int],
    biases: list[Tensor | None],
    shape: StepShape,
    slot: Tensor | None = None,
    hidden: Tensor | None = None,
) -> Tensor:
    """Embedded new tokens (M, hidden) -> hidden states before the last norm; writes their keys into the caches.

    ends, biases: for each length bucket, the number of its last entry plus one, and what hides its padding. angles:
    cos, sin (E * W, 1, d) of each rope as ops.RopeTable gives them; positions (E * W,). Rows from E * W to M are
    only padding; they see nothing.

    slot (1,), hidden (slots,): for capturing, the same step without a Python number that changes: the keys are written
    at slot instead of shape.slot, and hidden masks the slots after it, whose contents must be finite.
    """
    heads, kv_heads, entries, width = shape.heads, shape.kv_heads, shape.entries, shape.width
    both, size, places, style = heads + kv_heads, caches[0].completion_k.shape[3], entries * width, shape.style
    own_slots = caches[0].completion_k.shape[4]
    q = caches[0].completion_k.new_empty([entries, kv_heads, width, heads // kv_heads, size])
    merged = x.new_zeros([x.shape[0], heads * size])
    by_place = merged[:places].view(entries, width, kv_heads, heads // kv_heads, size)
    everything = AttentionMask(biases, hidden)
    within = everything
    if style.window > 0:
        within = _within_window(everything, positions, caches[0], ends, shape, slot)
    for layer, keys in zip(layers, caches):  # noqa: B905 - TorchScript's zip takes no strict
        sight = within if layer.windowed else everything
        rows = apply_projection(_norm(x, layer.norm1, style.norm_eps), layer.qkv).view(-1, both + kv_heads, size)
        if len(layer.head_norms) == 2:
            rows[:, :heads] = _head_norm(rows[:, :heads], layer.head_norms[0], style.norm_eps)
            rows[:, heads:both] = _head_norm(rows[:, heads:both], layer.head_norms[1], style.norm_eps)
        rows = rows[:places]
        cos, sin = angles[layer.rope]
        apply_rope(rows.narrow(1, 0, both), cos, sin)
        new = rows.narrow(1, heads, 2 * kv_heads).view(entries, width, 2, kv_heads, size).permute(2, 0, 3, 1, 4)
        if slot is None:
            keys.completion_k.select(4, shape.slot).copy_(new[0])
            keys.completion_v.select(3, shape.slot).copy_(new[1])
        else:
            keys.completion_k.index_copy_(4, slot, new[0].unsqueeze(4).to(keys.completion_k.dtype))
            keys.completion_v.index_copy_(3, slot, new[1].unsqueeze(3).to(keys.completion_v.dtype))
        q.copy_(rows.narrow(1, 0, heads).view(entries, width, kv_heads, heads // kv_heads, size).transpose(1, 2))
        filled = shape.slot + 1 if slot is None else own_slots
        completion_k, completion_v = keys.completion_k.flatten(0, 2), keys.completion_v.flatten(0, 2)
        begin = 0
        for i, end in enumerate(ends):
            first, count = begin * kv_heads * width, (end - begin) * kv_heads * width
            attended = _attention(
                q[begin:end],
                keys.prompt_k[i],
                keys.prompt_v[i],
                completion_k.narrow(0, first, count),
                completion_v.narrow(0, first, count),
                sight.prompts[i],
                filled,
                sight.own,
                style,
            )
            by_place[begin:end].copy_(attended.transpose(1, 2))
            begin = end
        x = _add_linear(merged, layer.out, x, layer.after1, style)
        activated = gated_mlp(_norm(x, layer.norm2, style.norm_eps), layer.mlp, style.gelu)
        x = _add_linear(activated, layer.down, x, layer.after2, style)
    return x


def next_logits(
    tokens: Tensor,
    positions: Tensor,
    fed: Tensor,
    picked: Tensor,
    frame: OuterWeights,
    layers: list[LayerWeights],
    caches: list[LayerKVCache],
    ends: list[int],
    biases: list[Tensor | None],
    shape: StepShape,
    slot: Tensor | None = None,
    hidden: Tensor | None = None,
) -> Tensor:
    """tokens (rows,), positions (places,) -> logits (M, V), of which the first are the rows'; see decode_step.

    fed, picked: the row that each place is fed, and each row's place, padded to sizes that products are compiled for.
    """
    style = shape.style
    x = F.embedding(tokens[fed], frame.embed)
    if style.embed_scale != 1.0:
        x = x * style.embed_scale
    angles = [(cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)) for cos, sin in frame.tables]
    x = decode_step(x, angles, positions, layers, caches, ends, biases, shape, slot, hidden)
    x = _norm(x[picked], frame.norm, style.norm_eps)
    if style.logit_scale != 1.0:
        x = x * style.logit_scale
    return apply_softcap(apply_projection(x, frame.head), style.logit_softcap)
