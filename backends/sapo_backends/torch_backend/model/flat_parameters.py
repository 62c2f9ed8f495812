"""All parameters in one flat tensor, so that casts, gradients, clipping and Adam each touch memory once.

Projections that read the same input lie next to each other: q, k, v are one matrix, gate and up another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, linears
from sapo_backends.common import allocator

PIECE = 1 << 22
"""Elements that are copied at once."""


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

    def split(self, fused: Tensor) -> dict[str, Tensor]:
        """The file's tensors by name."""
        pieces = torch.split(fused, [part.rows for part in self.parts])
        return {part.name: piece for part, piece in zip(self.parts, pieces, strict=True)}


class Layout:
    """Where each fused tensor lies in the flat one."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.size = sum(entry.size for entry in entries)
        self._sizes = [entry.size for entry in entries]

    def without(self, names: Collection[str]) -> Layout:
        """The same without these fused tensors."""
        return Layout([entry for entry in self.entries if entry.name not in names])

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
def move(tensors: Mapping[str, Tensor], views: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Copy each tensor into the view of its name, then yield both. Afterwards the tensors hold nothing: the memory of what is
    copied is given back a piece at a time, so that little is there twice."""
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors.values())
    overlap = any(end > begin for (_, end), (begin, _) in pairwise(ranges))
    for name, view in views.items():
        source = tensors[name].detach()
        if overlap or source.device.type != "cpu" or not source.is_contiguous():
            view.copy_(source)
        else:
            for room, piece in zip(*(torch.split(t.view(-1), PIECE) for t in (view, source)), strict=True):
                room.copy_(piece)
                allocator.drop_pages(piece.data_ptr(), piece.nbytes)
        yield name, view


def _stack(name: str, columns: int, parts: Sequence[tuple[str, int]], *, bias: bool = False) -> Entry:
    """A fused weight (rows, columns), or with bias=True a fused vector (rows,)."""
    kind = "bias" if bias else "weight"
    rows = sum(count for _, count in parts)
    shape = (rows,) if bias else (rows, columns)
    return Entry(f"{name}.{kind}", shape, tuple(Part(f"{part}.{kind}", count) for part, count in parts))


def _vector(name: str, source: str, size: int) -> Entry:
    return Entry(name, (size,), (Part(source, size),))


def decoder_layout(spec: DecoderSpec) -> Layout:
    """The layout of a whole decoder."""
    entries = [Entry("embed", (spec.vocabulary, spec.hidden), (Part("model.embed_tokens.weight", spec.vocabulary),))]
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for norm, source in spec.layer_norms.items():
            entries.append(_vector(f"{layer}.{norm}", f"{prefix}.{source}.weight", spec.hidden))
        if spec.qk_norm:
            widths = (spec.query_width, spec.kv_width) if spec.qk_norm == "all" else (spec.head_dim,) * 2
            for part, width in zip("qk", widths, strict=True):
                entries.append(_vector(f"{layer}.{part}_norm", f"{prefix}.self_attn.{part}_norm.weight", width))
        for name, columns, parts, biased in linears(spec, layer):
            entries.append(_stack(name, columns, parts))
            if biased:
                entries.append(_stack(name, columns, parts, bias=True))
    entries.append(_vector("norm", "model.norm.weight", spec.hidden))
    if not spec.tied:
        entries.append(Entry("head", (spec.vocabulary, spec.hidden), (Part("lm_head.weight", spec.vocabulary),)))
    return Layout(entries)
