"""Our own decoder: every family in one function over named tensors, which are views of one flat parameter, with LoRA
adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, fused_projections
from sapo_backends.common import hardware
from sapo_backends.torch_backend.native import NativeKernels
from sapo_backends.torch_backend.ops import (
    BLOCK,
    FourBit,
    RopeTable,
    Weight,
    adapted_linear,
    adapted_mlp,
    dense_weight,
    geglu,
    rms_norm,
    swiglu,
    wide_rms_norm,
)
from sapo_backends.torch_backend.packing import FlatTokens

# All parameters in one flat tensor, so that casts, gradients, clipping and Adam each touch memory once.
#
# Projections that read the same input are adjacent: q, k, v form one matrix, gate and up another.

PIECE = 1 << 22
"""Elements that are copied at once."""


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One tensor of the Hugging Face file: its name there, and its rows in the fused tensor."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """A fused tensor: our name, its shape, and the file's tensors stacked along axis 0."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[FusedPart, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def split(self, fused: Tensor) -> dict[str, Tensor]:
        """The file's tensors by name."""
        pieces = torch.split(fused, [part.rows for part in self.parts])
        return {part.name: piece for part, piece in zip(self.parts, pieces, strict=True)}


class TensorLayout:
    """Where each fused tensor is in the flat one."""

    def __init__(self, entries: Sequence[FusedTensor]) -> None:
        self.entries = tuple(entries)
        self.size = sum(entry.size for entry in entries)
        self._sizes = [entry.size for entry in entries]

    def without(self, names: Collection[str]) -> TensorLayout:
        """The same without these fused tensors."""
        return TensorLayout([entry for entry in self.entries if entry.name not in names])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Fused name -> view of flat (size,); differentiable."""
        pieces = torch.split(flat, self._sizes)
        return {entry.name: piece.view(entry.shape) for entry, piece in zip(self.entries, pieces, strict=True)}

    def named_parts(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, view of flat) of every tensor in the file."""
        for entry, fused in zip(self.entries, self.views(flat).values(), strict=True):
            yield from entry.split(fused).items()

    def fill(self, flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors by Hugging Face name into flat: all of them, or none. Raises RuntimeError on a mismatch."""
        views = dict(self.named_parts(flat))
        odd = sorted(views.keys() ^ tensors.keys())
        if odd:
            raise RuntimeError(f"{odd[0]} is {'missing' if odd[0] in views else 'unknown'}")
        for name, view in views.items():
            if view.shape != tensors[name].shape:
                raise RuntimeError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(view.shape)}")
        with torch.no_grad():
            for name, view in views.items():
                view.copy_(tensors[name])


@torch.no_grad()
def move_tensors(tensors: Mapping[str, Tensor], views: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Copy each tensor into the view of its name, then yield both. The tensors are empty afterwards: the memory of
    copied parts is freed a piece at a time, so that little is held twice."""
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors.values())
    overlap = any(end > begin for (_, end), (begin, _) in pairwise(ranges))
    for name, view in views.items():
        source = tensors[name].detach()
        if overlap or source.device.type != "cpu" or not source.is_contiguous():
            view.copy_(source)
        else:
            for room, piece in zip(*(torch.split(t.view(-1), PIECE) for t in (view, source)), strict=True):
                room.copy_(piece)
                hardware.drop_pages(piece.data_ptr(), piece.nbytes)
        yield name, view


def _stack(name: str, columns: int, parts: Sequence[tuple[str, int]], *, bias: bool = False) -> FusedTensor:
    """A fused weight (rows, columns), or with bias=True a fused vector (rows,)."""
    kind = "bias" if bias else "weight"
    rows = sum(count for _, count in parts)
    shape = (rows,) if bias else (rows, columns)
    return FusedTensor(f"{name}.{kind}", shape, tuple(FusedPart(f"{part}.{kind}", count) for part, count in parts))


def _vector(name: str, source: str, size: int) -> FusedTensor:
    return FusedTensor(name, (size,), (FusedPart(source, size),))


def decoder_layout(spec: DecoderSpec) -> TensorLayout:
    """The layout of a whole decoder."""
    entries = [
        FusedTensor("embed", (spec.vocabulary, spec.hidden), (FusedPart("model.embed_tokens.weight", spec.vocabulary),))
    ]
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for norm, source in spec.layer_norms.items():
            entries.append(_vector(f"{layer}.{norm}", f"{prefix}.{source}.weight", spec.hidden))
        if spec.qk_norm:
            widths = (spec.query_width, spec.kv_width) if spec.qk_norm == "all" else (spec.head_dim,) * 2
            for part, width in zip("qk", widths, strict=True):
                entries.append(_vector(f"{layer}.{part}_norm", f"{prefix}.self_attn.{part}_norm.weight", width))
        for name, columns, parts, biased in fused_projections(spec, layer):
            entries.append(_stack(name, columns, parts))
            if biased:
                entries.append(_stack(name, columns, parts, bias=True))
    entries.append(_vector("norm", "model.norm.weight", spec.hidden))
    if not spec.tied:
        entries.append(
            FusedTensor("head", (spec.vocabulary, spec.hidden), (FusedPart("lm_head.weight", spec.vocabulary),))
        )
    return TensorLayout(entries)


# Which tensors of a model are stored in 4 bits, and where a file's tensors belong in them.


def reserve_four_bit(layout: TensorLayout, compute: torch.dtype, device: torch.device) -> dict[str, FourBit]:
    """Space for every fused weight that is stored in 4 bits."""
    return {e.name: FourBit.empty(e.shape[0], e.shape[1], compute, device) for e in layout.entries if fits_four_bit(e)}


def fits_four_bit(entry: FusedTensor) -> bool:
    """Whether a fused tensor is stored in 4 bits: projections whose parts are whole blocks are; embeddings, norms and
    biases are not."""
    if len(entry.shape) != 2 or not entry.name.endswith(".weight"):
        return False
    return entry.shape[1] % 2 == 0 and all(part.rows * entry.shape[1] % BLOCK == 0 for part in entry.parts)


def four_bit_places(
    weights: Mapping[str, FourBit], entries: Sequence[FusedTensor]
) -> dict[str, tuple[FourBit, int, tuple[int, int]]]:
    """The file's tensor name -> its fused weight, the index of its first element there, its shape."""
    places = {}
    for entry in entries:
        if entry.name not in weights:
            continue
        at, columns = 0, entry.shape[1]
        for part in entry.parts:
            places[part.name] = weights[entry.name], at, (part.rows, columns)
            at += part.rows * columns
    return places


# LoRA (arXiv 2106.09685) on every linear layer, with PEFT's names, so that peft and our GGUF writer can read it.

PREFIX = "base_model.model."


def lora_layout(spec: DecoderSpec, rank: int) -> TensorLayout:
    """A of projections with the same input are stacked: (parts * rank, in); each B is separate (out, rank)."""
    entries = []
    for layer in range(spec.layers):
        for name, columns, parts, _ in fused_projections(spec, layer):
            down = tuple(FusedPart(f"{PREFIX}{module}.lora_A.weight", rank) for module, _ in parts)
            entries.append(FusedTensor(f"{name}.A", (rank * len(parts), columns), down))
            for i, (module, rows) in enumerate(parts):
                up = (FusedPart(f"{PREFIX}{module}.lora_B.weight", rows),)
                entries.append(FusedTensor(f"{name}.B{i}", (rows, rank), up))
    return TensorLayout(entries)


def initialise_lora(layout: TensorLayout, flat: Tensor, seed: int) -> None:
    """A uniform as in PEFT's Kaiming initialisation, B zero: at first the adapter changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    flat.zero_()
    for name, view in layout.named_parts(flat):
        if ".lora_A." in name:
            bound = 1.0 / math.sqrt(view.shape[1])
            view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter in the compute type. scale = alpha / rank. observe: is called with the name and the input of every fused
    projection."""

    tensors: Mapping[str, Tensor]
    rank: int
    scale: float
    observe: Callable[[str, Tensor], None] | None = None

    def delta(self, name: str, x: Tensor) -> Tensor:
        """scale * B A x, for layers that are themselves computed elsewhere: (N, in) -> (N, out)."""
        low = F.linear(x, self.tensors[f"{name}.A"]) * self.scale  # (N, parts * rank)
        parts = torch.split(low, self.rank, dim=-1)
        return torch.cat([F.linear(part, self.tensors[f"{name}.B{i}"]) for i, part in enumerate(parts)], dim=-1)

    def linear(self, name: str, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """W x + b + scale * B A x for the fused projection `name`: (N, in) -> (N, out). W and b are not trained."""
        if self.observe is not None:
            self.observe(name, x)
        ups = [self.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in self.tensors]
        return adapted_linear(x, weight, bias, self.scale, self.tensors[f"{name}.A"], *ups)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor, frozen: Mapping[str, Any]) -> Tensor:
        """residual + the layer's gated MLP of x, all (N, hidden). frozen: the model's own tensors."""
        names = ("gate_up.A", "gate_up.B0", "gate_up.B1", "down.A", "down.B0")
        adapter = [self.tensors[f"{layer}.{name}"] for name in names]
        both = (f"{layer}.gate_up", f"{layer}.down")
        gate_up, down = ((frozen[f"{name}.weight"], frozen.get(f"{name}.bias")) for name in both)
        return adapted_mlp(x, residual, gate_up, down, self.scale, *adapter)


# The decoder itself: every family of spec.FAMILIES in one function over flat tokens.
#
# Tokens of all sequences are concatenated, (N, width); only attention knows which belong together, and it is
# passed in. The same code therefore serves training, prefill and decoding.


class AttentionFunction(Protocol):
    """Queries, keys and values of one layer, rows (N, heads + 2 kv_heads, d), not rotated -> (N, heads * d).

    cos, sin: as ops.RopeTable gives them. The rows may be overwritten if they need no gradient.
    """

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor, /) -> Tensor:
        """Attention of one layer; layer counts from 0, heads is the number of query heads."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Fused tensors by name in the compute type, projections possibly as FourBit; the adapter if there is one, and the
    kernels to compute with, if any."""

    spec: DecoderSpec
    tensors: Mapping[str, Any]
    adapter: LoraWeights | None = None
    kernels: NativeKernels | None = None

    def norm_weight(self, name: str) -> Tensor:
        """A norm's multiplier: some families store its difference from 1."""
        weight: Tensor = self.tensors[name]
        return weight + self.spec.norm_offset if self.spec.norm_offset else weight

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x (..., width) normalised; x itself if the family has no such norm."""
        if name not in self.tensors:
            return x
        if self.spec.norm_offset and x.dtype == torch.bfloat16:
            return wide_rms_norm(x, self.tensors[name], self.spec.norm_offset, self.spec.norm_eps)
        return rms_norm(x, self.norm_weight(name), self.spec.norm_eps, self.kernels)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out) through a fused projection and its adapter."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        return (
            F.linear(x, dense_weight(weight), bias)
            if self.adapter is None
            else self.adapter.linear(name, x, weight, bias)
        )

    def add_linear(self, name: str, x: Tensor, residual: Tensor, after: str) -> Tensor:
        """residual + linear(x), normalised by `after` if the family does so; in one pass if nothing else is added."""
        factor, is_normed = self.spec.residual_scale, after in self.tensors
        if self.adapter is None and f"{name}.bias" not in self.tensors and factor == 1.0 and not is_normed:
            return torch.addmm(residual, x, dense_weight(self.tensors[f"{name}.weight"]).t())
        y = self.norm(after, self.linear(name, x))
        return residual + (y if factor == 1.0 else y * factor)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the layer's gated MLP of x, all (N, hidden)."""
        spec = self.spec
        usual = (spec.activation, spec.fused, spec.norms, spec.residual_scale) == ("silu", False, "before", 1.0)
        if self.adapter is not None and usual and self.adapter.observe is None:
            return self.adapter.add_mlp(layer, x, residual, self.tensors)
        gate_up = self.linear(f"{layer}.gate_up", x)
        activated = swiglu(gate_up, self.kernels) if spec.activation == "silu" else geglu(gate_up)
        return self.add_linear(f"{layer}.down", activated, residual, f"{layer}.after2")

    @property
    def head(self) -> Tensor:
        """The unembedding (V, hidden)."""
        head: Tensor = self.tensors.get("head", self.tensors["embed"])
        return head


def hidden_states(
    spec: DecoderSpec,
    weights: DecoderWeights,
    rope: RopeTable,
    flat: FlatTokens,
    attend: AttentionFunction,
    wanted: Tensor,
) -> Tensor:
    """Final normalised hidden states (M, hidden) of wanted (M,) of the N flat tokens, times the logits' scale.

    For the others, the last layer computes only what attention needs: most of a prompt predicts nothing.
    """
    x = F.embedding(flat.ids, weights.tensors["embed"])
    if spec.embed_scale != 1.0:
        x = x * spec.embed_scale
    angles = rope.at(flat.positions, flat.longest)
    for layer in range(spec.layers):
        h = weights.norm(f"{layer}.norm1", x)
        rows = _heads(spec, weights, layer, weights.linear(f"{layer}.qkv", h))
        attended = attend(layer, spec.heads, rows, *angles[spec.layer_rope[layer]])
        if layer == spec.layers - 1:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        x = weights.add_linear(f"{layer}.o", attended, x, f"{layer}.after1")
        x = weights.add_mlp(layer, weights.norm(f"{layer}.norm2", x), x)
    x = weights.norm("norm", x)
    return x if spec.logit_scale == 1.0 else x * spec.logit_scale


def _heads(spec: DecoderSpec, weights: DecoderWeights, layer: int, qkv: Tensor) -> Tensor:
    """Fused (N, q + 2 kv) -> (N, heads + 2 kv_heads, d), queries and keys normalised if the model does so."""
    rows = qkv.view(qkv.shape[0], -1, spec.head_dim)
    if not spec.qk_norm:
        return rows
    q, k, v = torch.split(rows, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
    if spec.qk_norm == "all":
        q, k = (weights.norm(f"{layer}.{n}_norm", x.flatten(1)).view_as(x) for n, x in (("q", q), ("k", k)))
    else:
        q, k = weights.norm(f"{layer}.q_norm", q), weights.norm(f"{layer}.k_norm", k)
    return torch.cat((q, k, v), dim=1)
