"""Which tensors of a model are stored in 4 bits, and where the parts of a file lie in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sapo_backends.torch_backend.model.flat_parameters import Entry, Layout
from sapo_backends.torch_backend.ops.four_bit import BLOCK, FourBit


def reserve(layout: Layout, compute: torch.dtype, device: torch.device) -> dict[str, FourBit]:
    """Room for every fused weight that is stored in 4 bits."""
    return {e.name: FourBit.empty(e.shape[0], e.shape[1], compute, device) for e in layout.entries if fits(e)}


def fits(entry: Entry) -> bool:
    """Whether a fused tensor is stored in 4 bits: a projection whose parts are whole blocks. Embeddings, norms and biases are
    not."""
    if len(entry.shape) != 2 or not entry.name.endswith(".weight"):
        return False
    return entry.shape[1] % 2 == 0 and all(part.rows * entry.shape[1] % BLOCK == 0 for part in entry.parts)


def rooms(weights: Mapping[str, FourBit], entries: Sequence[Entry]) -> dict[str, tuple[FourBit, int, tuple[int, int]]]:
    """The file's tensor name -> where it lies: its fused weight, the number of its first weight there, its shape."""
    found = {}
    for entry in entries:
        if entry.name not in weights:
            continue
        at, columns = 0, entry.shape[1]
        for part in entry.parts:
            found[part.name] = weights[entry.name], at, (part.rows, columns)
            at += part.rows * columns
    return found
