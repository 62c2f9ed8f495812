"""One decode step of a whole batch as a single function that TorchScript can run (runtime/torchscript.py).

On processors whose bfloat16 goes through oneDNN the weights are laid out for it once a batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.ops.fused_ops import rms_norm_forward, rotate
from sapo_backends.torch_backend.runtime.torchscript import scripted


class Projection(NamedTuple):
    """A linear layer, weight (out, in) or oneDNN's own form of it, and its adapter: scale * B A x.

    lora_a: none, or one (parts * rank, in); lora_b: none, or one (out, parts * rank), 0 but for each part's own rank.
    """

    weight: Tensor
    bias: Tensor | None
    lora_a: list[Tensor]
    lora_b: list[Tensor]
    scale: float


class Layer(NamedTuple):
    """One layer's weights. mlp: gate and up, or one fused projection. head_norms: none, or those of queries and
    keys."""

    norm1: Tensor
    qkv: Projection
    head_norms: list[Tensor]
    out: Projection
    norm2: Tensor
    mlp: list[Projection]
    down: Projection


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


class Shape(NamedTuple):
    """entries * width places; slot is where the new token's keys go."""

    heads: int
    kv_heads: int
    entries: int
    width: int
    slot: int
    norm_eps: float


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm_forward(x, weight, eps)[0]


def _adapted(y: Tensor, x: Tensor, of: Projection) -> Tensor:
    """y with what the adapter adds."""
    return y if len(of.lora_a) == 0 else y.addmm_(F.linear(x, of.lora_a[0]).mul_(of.scale), of.lora_b[0].t())


def linear(x: Tensor, of: Projection) -> Tensor:
    """x (N, in) -> (N, out) through a projection and its adapter."""
    if of.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, of.weight, of.bias, "none", [], "")
    else:
        y = F.linear(x, of.weight, of.bias)
    return _adapted(y, x, of)


def _add_linear(x: Tensor, of: Projection, residual: Tensor) -> Tensor:
    if of.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, residual, of.weight, of.bias, "add")
    elif of.bias is None:
        y = torch.addmm(residual, x, of.weight.t())
    else:
        y = F.linear(x, of.weight, of.bias).add_(residual)
    return _adapted(y, x, of)


def _swiglu(x: Tensor, mlp: list[Projection]) -> Tensor:
    """silu(gate) * up."""
    if len(mlp) == 1:
        gate, up = linear(x, mlp[0]).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
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
) -> Tensor:
    """q (E', kv_heads, W, g, d) of the entries of one bucket -> softmax(q k^T) v of that shape.

    bias (E' * kv_heads, 1, p): 0 or -inf. end: slots of completion_k and completion_v that are read; hidden (end,): 0,
    or -inf for those that are not filled yet, where there are such.
    """
    entries, kv_heads, width, group, size = q.shape
    scale = float(size) ** -0.5
    none = q.new_empty([1, 1, 1])
    to_prompt, to_own = q.view(entries * kv_heads, width * group, size), q.view(-1, group, size)
    on_prompt = torch.baddbmm(none, to_prompt, prompt_k, beta=0, alpha=scale)  # (E' * kv_heads, W * g, p)
    if bias is not None:
        on_prompt.add_(bias)
    on_own = torch.baddbmm(none, to_own, completion_k.narrow(2, 0, end), beta=0, alpha=scale)
    if hidden is not None:
        on_own.add_(hidden)
    both = torch.cat((on_prompt, on_own.view(entries * kv_heads, width * group, end)), dim=-1).softmax(dim=-1)
    shared = prompt_k.shape[2]
    attended = torch.bmm(both.view(-1, group, shared + end).narrow(2, shared, end), completion_v.narrow(1, 0, end))
    attended.view(entries * kv_heads, width * group, size).baddbmm_(both.narrow(2, 0, shared), prompt_v)
    return attended.view(entries, kv_heads, width, group, size)


def decode_step(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: list[Layer],
    caches: list[LayerKVCache],
    ends: list[int],
    biases: list[Tensor | None],
    shape: Shape,
    slot: Tensor | None = None,
    hidden: Tensor | None = None,
) -> Tensor:
    """Embedded new tokens (M, hidden) -> hidden states before the last norm; writes their keys into the caches.

    ends, biases: of each length bucket, its last entry's number plus one and what hides its padding. cos, sin (E * W,
    1, d): as rope.RopeTable gives them. Rows from E * W to M only fill up; they see nothing.

    slot (1,), hidden (slots,): the same step without a number that changes, for capturing: where the keys go instead of
    shape.slot, and what hides the slots behind it, which must be finite.
    """
    heads, kv_heads, entries, width = shape.heads, shape.kv_heads, shape.entries, shape.width
    both, size, places = heads + kv_heads, cos.shape[-1], entries * width
    own_slots = caches[0].completion_k.shape[4]
    q = caches[0].completion_k.new_empty([entries, kv_heads, width, heads // kv_heads, size])
    merged = x.new_zeros([x.shape[0], heads * size])
    by_place = merged[:places].view(entries, width, kv_heads, heads // kv_heads, size)
    for layer, keys in zip(layers, caches):  # noqa: B905 - TorchScript's zip takes no strict
        rows = linear(_norm(x, layer.norm1, shape.norm_eps), layer.qkv).view(-1, both + kv_heads, size)
        if len(layer.head_norms) == 2:
            rows[:, :heads] = _norm(rows[:, :heads], layer.head_norms[0], shape.norm_eps)
            rows[:, heads:both] = _norm(rows[:, heads:both], layer.head_norms[1], shape.norm_eps)
        rows = rows[:places]
        rotate(rows.narrow(1, 0, both), cos, sin)
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
                biases[i],
                filled,
                hidden,
            )
            by_place[begin:end].copy_(attended.transpose(1, 2))
            begin = end
        x = _add_linear(merged, layer.out, x)
        x = _add_linear(_swiglu(_norm(x, layer.norm2, shape.norm_eps), layer.mlp), layer.down, x)
    return x


class Frame(NamedTuple):
    """What lies around the layers: embedding (V, hidden), last norm, unembedding, and rope.RopeTable's tables."""

    embed: Tensor
    norm: Tensor
    head: Projection
    cos: Tensor
    sin: Tensor


def next_logits(
    tokens: Tensor,
    positions: Tensor,
    fed: Tensor,
    picked: Tensor,
    frame: Frame,
    layers: list[Layer],
    caches: list[LayerKVCache],
    ends: list[int],
    biases: list[Tensor | None],
    shape: Shape,
    slot: Tensor | None = None,
    hidden: Tensor | None = None,
) -> Tensor:
    """tokens (rows,), positions (places,) -> logits (M, V) of which the first are the rows'; see decode_step.

    fed, picked: the row that each place is fed, and each row's place, filled up to numbers that products are compiled
    for.
    """
    x = F.embedding(tokens[fed], frame.embed)
    cos, sin = frame.cos[positions].unsqueeze(1), frame.sin[positions].unsqueeze(1)
    x = decode_step(x, cos, sin, layers, caches, ends, biases, shape, slot, hidden)
    return linear(_norm(x[picked], frame.norm, shape.norm_eps), frame.head)


Step = Callable[..., Tensor]


def scripted_step() -> Step:
    """next_logits as TorchScript, or as it stands."""
    return scripted(next_logits)
