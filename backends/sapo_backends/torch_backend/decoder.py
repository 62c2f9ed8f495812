"""The decoder itself: Qwen2, Qwen3 and Llama in one function over flat tokens.

Tokens of all sequences lie behind one another, (N, width); only attention knows which belong together, and it is
passed in. The same code therefore serves training, prefill and decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.fused import rms_norm, rotate, swiglu
from sapo_backends.torch_backend.lora import LoraWeights
from sapo_backends.torch_backend.rope import RopeTable
from sapo_backends.torch_backend.spec import DecoderSpec


class Attend(Protocol):
    """q (N, heads, d), k and v (N, kv_heads, d) of one layer -> (N, heads * d)."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """Fused tensors by name in the compute type, and the adapter if there is one."""

    tensors: Mapping[str, Tensor]
    adapter: LoraWeights | None = None

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out) through a fused projection and its adapter."""
        y = F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))
        return y if self.adapter is None else y + self.adapter.delta(name, x)

    def add_linear(self, name: str, x: Tensor, residual: Tensor) -> Tensor:
        """residual + linear(x), in one pass where nothing else is to be added."""
        if self.adapter is None and f"{name}.bias" not in self.tensors:
            return torch.addmm(residual, x, self.tensors[f"{name}.weight"].t())
        return residual + self.linear(name, x)

    @property
    def head(self) -> Tensor:
        """The unembedding (V, hidden)."""
        return self.tensors.get("head", self.tensors["embed"])


def hidden_states(
    spec: DecoderSpec, weights: Weights, rope: RopeTable, ids: Tensor, positions: Tensor, longest: int, attend: Attend
) -> Tensor:
    """ids, positions (N,) -> final normalised hidden states (N, hidden). positions are below `longest`."""
    tensors = weights.tensors
    x = F.embedding(ids, tensors["embed"])
    cos, sin = rope.at(positions, longest)
    for layer in range(spec.layers):
        h = rms_norm(x, tensors[f"{layer}.norm1"], spec.norm_eps)
        qkv = weights.linear(f"{layer}.qkv", h)
        q, k, v = _heads(spec, tensors, layer, qkv, cos, sin)
        x = weights.add_linear(f"{layer}.o", attend(layer, q, k, v), x)
        h = rms_norm(x, tensors[f"{layer}.norm2"], spec.norm_eps)
        x = weights.add_linear(f"{layer}.down", swiglu(weights.linear(f"{layer}.gate_up", h)), x)
    return rms_norm(x, tensors["norm"], spec.norm_eps)


def _heads(
    spec: DecoderSpec, tensors: Mapping[str, Tensor], layer: int, qkv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Fused (N, q + 2 kv) -> rotated q (N, heads, d), rotated k and plain v (N, kv_heads, d)."""
    rows = qkv.view(qkv.shape[0], -1, spec.head_dim)
    both = spec.heads + spec.kv_heads
    if spec.qk_norm:
        q = rms_norm(rows[:, : spec.heads], tensors[f"{layer}.q_norm"], spec.norm_eps)
        k = rms_norm(rows[:, spec.heads : both], tensors[f"{layer}.k_norm"], spec.norm_eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), rows[:, both:]
    rotated = rotate(rows[:, :both], cos, sin)
    return rotated[:, : spec.heads], rotated[:, spec.heads :], rows[:, both:]
