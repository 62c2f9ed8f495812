"""Rotary position embeddings (RoFormer, arXiv 2104.09864) with linear and Llama-3 scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position of each pair of coordinates (head_dim / 2,), float32."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind != "llama3":
        return frequencies
    # Long wavelengths are stretched by `factor`, short ones kept, those between blended.
    rotations = rope.original_context * frequencies / (2 * math.pi)
    blend = ((rotations - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / rope.factor)


class RopeTable:
    """cos and sin of every position, made once and grown when needed."""

    def __init__(self, spec: DecoderSpec, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies(spec.rope, spec.head_dim)
        self._device, self._dtype = device, dtype
        self._grow(256)

    def _grow(self, positions: int) -> None:
        angles = torch.outer(torch.arange(positions).float(), self._frequencies).repeat(1, 2)  # (positions, head_dim)
        self._cos = angles.cos().to(self._device, self._dtype)
        signs = torch.ones(angles.shape[1]).index_fill_(0, torch.arange(angles.shape[1] // 2), -1.0)
        self._sin = (angles.sin() * signs).to(self._device, self._dtype)

    def tables(self, longest: int) -> tuple[Tensor, Tensor]:
        """cos, sin (at least longest, head_dim) of positions from 0; the first half of sin is negated."""
        if longest > len(self._cos):
            self._grow(2 * longest)
        return self._cos, self._sin

    def at(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """cos, sin (N, 1, head_dim) at positions (N,), all below `longest`."""
        cos, sin = self.tables(longest)
        return cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
