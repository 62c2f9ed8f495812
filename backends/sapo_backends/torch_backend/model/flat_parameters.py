"""All parameters in one flat tensor, so that casts, gradients, clipping and Adam each touch memory once.

Projections that read the same input lie next to each other: q, k, v are one matrix, gate and up another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the Hugging Face file: its name there and its rows of the fused tensor."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A fused tensor: our name, its shape, and the file's tensors stacked along axis 0."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


class Layout:
    """Where each fused tensor lies in the flat one."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.size = sum(entry.size for entry in entries)
        self._sizes = [entry.size for entry in entries]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Fused name -> view of flat (size,); differentiable."""
        pieces = torch.split(flat, self._sizes)
        return {entry.name: piece.view(entry.shape) for entry, piece in zip(self.entries, pieces, strict=True)}

    def named_parts(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, view of flat) of every tensor in the file."""
        for entry, fused in zip(self.entries, self.views(flat).values(), strict=True):
            for part, piece in zip(entry.parts, torch.split(fused, [p.rows for p in entry.parts]), strict=True):
                yield part.name, piece

    def fill(self, flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors by Hugging Face name into flat. Raises KeyError or RuntimeError on a mismatch."""
        with torch.no_grad():
            for name, view in self.named_parts(flat):
                if view.shape != tensors[name].shape:
                    raise RuntimeError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(view.shape)}")
                view.copy_(tensors[name])


def _stack(name: str, columns: int, parts: Sequence[tuple[str, int]], *, bias: bool = False) -> Entry:
    """A fused weight (rows, columns), or with bias=True a fused vector (rows,)."""
    kind = "bias" if bias else "weight"
    rows = sum(count for _, count in parts)
    shape = (rows,) if bias else (rows, columns)
    return Entry(f"{name}.{kind}", shape, tuple(Part(f"{part}.{kind}", count) for part, count in parts))


def _vector(name: str, source: str, size: int) -> Entry:
    return Entry(name, (size,), (Part(source, size),))


def linears(spec: DecoderSpec, layer: int) -> list[tuple[str, int, list[tuple[str, int]], bool]]:
    """(fused name, input width, [(module, output width)], has bias) of a layer's four fused projections."""
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    qkv = [
        (f"{attention}.q_proj", spec.query_width),
        (f"{attention}.k_proj", spec.kv_width),
        (f"{attention}.v_proj", spec.kv_width),
    ]
    gate_up = [(f"{mlp}.gate_proj", spec.intermediate), (f"{mlp}.up_proj", spec.intermediate)]
    return [
        (f"{layer}.qkv", spec.hidden, qkv, spec.qkv_bias),
        (f"{layer}.o", spec.query_width, [(f"{attention}.o_proj", spec.hidden)], spec.output_bias),
        (f"{layer}.gate_up", spec.hidden, gate_up, spec.mlp_bias),
        (f"{layer}.down", spec.intermediate, [(f"{mlp}.down_proj", spec.hidden)], spec.mlp_bias),
    ]


def decoder_layout(spec: DecoderSpec) -> Layout:
    """The layout of a whole decoder."""
    entries = [Entry("embed", (spec.vocabulary, spec.hidden), (Part("model.embed_tokens.weight", spec.vocabulary),))]
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        entries.append(_vector(f"{layer}.norm1", f"{prefix}.input_layernorm.weight", spec.hidden))
        entries.append(_vector(f"{layer}.norm2", f"{prefix}.post_attention_layernorm.weight", spec.hidden))
        if spec.qk_norm:
            entries.append(_vector(f"{layer}.q_norm", f"{prefix}.self_attn.q_norm.weight", spec.head_dim))
            entries.append(_vector(f"{layer}.k_norm", f"{prefix}.self_attn.k_norm.weight", spec.head_dim))
        for name, columns, parts, biased in linears(spec, layer):
            entries.append(_stack(name, columns, parts))
            if biased:
                entries.append(_stack(name, columns, parts, bias=True))
    entries.append(_vector("norm", "model.norm.weight", spec.hidden))
    if not spec.tied:
        entries.append(Entry("head", (spec.vocabulary, spec.hidden), (Part("lm_head.weight", spec.vocabulary),)))
    return Layout(entries)
