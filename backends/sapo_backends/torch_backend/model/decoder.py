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

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.model.lora import LoraWeights
from sapo_backends.torch_backend.native.library import Kernels
from sapo_backends.torch_backend.ops.fused_ops import rms_norm, swiglu
from sapo_backends.torch_backend.ops.packing import Flat
from sapo_backends.torch_backend.ops.rope import RopeTable


class Attend(Protocol):
    """Queries, keys and values of one layer, rows (N, heads + 2 kv_heads, d), not rotated -> (N, heads * d).

    cos, sin: as rope.RopeTable gives them. The rows may be overwritten when they need no gradient.
    """

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor, /) -> Tensor:
        """Attention of one layer; layer counts from 0, heads are those of queries."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Fused tensors by name in the compute type, the adapter if there is one, and the kernels that compute with them,
    if any."""

    tensors: Mapping[str, Tensor]
    adapter: LoraWeights | None = None
    kernels: Kernels | None = None

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out) through a fused projection and its adapter."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        return F.linear(x, weight, bias) if self.adapter is None else self.adapter.linear(name, x, weight, bias)

    def add_linear(self, name: str, x: Tensor, residual: Tensor) -> Tensor:
        """residual + linear(x), in one pass where nothing else is to be added."""
        if self.adapter is None and f"{name}.bias" not in self.tensors:
            return torch.addmm(residual, x, self.tensors[f"{name}.weight"].t())
        return residual + self.linear(name, x)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the layer's gated MLP of x, all (N, hidden)."""
        if self.adapter is not None:
            return self.adapter.add_mlp(layer, x, residual, self.tensors)
        return self.add_linear(f"{layer}.down", swiglu(self.linear(f"{layer}.gate_up", x), self.kernels), residual)

    @property
    def head(self) -> Tensor:
        """The unembedding (V, hidden)."""
        return self.tensors.get("head", self.tensors["embed"])


def hidden_states(
    spec: DecoderSpec, weights: Weights, rope: RopeTable, flat: Flat, attend: Attend, wanted: Tensor
) -> Tensor:
    """Final normalised hidden states (M, hidden) of wanted (M,) of the N flat tokens.

    Of the others the last layer computes only what attention needs: most of a prompt predicts nothing.
    """
    tensors, kernels = weights.tensors, weights.kernels
    x = F.embedding(flat.ids, tensors["embed"])
    cos, sin = rope.at(flat.positions, flat.longest)
    for layer in range(spec.layers):
        h = rms_norm(x, tensors[f"{layer}.norm1"], spec.norm_eps, kernels)
        rows = _heads(spec, weights, layer, weights.linear(f"{layer}.qkv", h))
        attended = attend(layer, spec.heads, rows, cos, sin)
        if layer == spec.layers - 1:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        x = weights.add_linear(f"{layer}.o", attended, x)
        h = rms_norm(x, tensors[f"{layer}.norm2"], spec.norm_eps, kernels)
        x = weights.add_mlp(layer, h, x)
    return rms_norm(x, tensors["norm"], spec.norm_eps, kernels)


def _heads(spec: DecoderSpec, weights: Weights, layer: int, qkv: Tensor) -> Tensor:
    """Fused (N, q + 2 kv) -> (N, heads + 2 kv_heads, d), queries and keys normalised where the model does so."""
    rows = qkv.view(qkv.shape[0], -1, spec.head_dim)
    if not spec.qk_norm:
        return rows
    q, k, v = torch.split(rows, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
    q = rms_norm(q, weights.tensors[f"{layer}.q_norm"], spec.norm_eps, weights.kernels)
    k = rms_norm(k, weights.tensors[f"{layer}.k_norm"], spec.norm_eps, weights.kernels)
    return torch.cat((q, k, v), dim=1)
