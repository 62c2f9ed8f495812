"""The decoder itself: every family of spec.FAMILIES in one function over flat tokens.

Tokens of all sequences lie behind one another, (N, width); only attention knows which belong together, and it is
passed in. The same code therefore serves training, prefill and decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.model.lora import LoraWeights
from sapo_backends.torch_backend.native.library import Kernels
from sapo_backends.torch_backend.ops.four_bit import dense
from sapo_backends.torch_backend.ops.fused_ops import RopeTable, geglu, rms_norm, swiglu, wide_rms_norm
from sapo_backends.torch_backend.ops.packing import Flat


class Attend(Protocol):
    """Queries, keys and values of one layer, rows (N, heads + 2 kv_heads, d), not rotated -> (N, heads * d).

    cos, sin: as fused_ops.RopeTable gives them. The rows may be overwritten when they need no gradient.
    """

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor, /) -> Tensor:
        """Attention of one layer; layer counts from 0, heads are those of queries."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Fused tensors by name in the compute type, projections maybe as FourBit; the adapter if there is one, and the kernels
    that compute with them, if any."""

    spec: DecoderSpec
    tensors: Mapping[str, Any]
    adapter: LoraWeights | None = None
    kernels: Kernels | None = None

    def norm_weight(self, name: str) -> Tensor:
        """What a norm multiplies with: some families store what is added to 1."""
        weight: Tensor = self.tensors[name]
        return weight + self.spec.norm_offset if self.spec.norm_offset else weight

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x (..., width) normalised; x itself where the family has no such norm."""
        if name not in self.tensors:
            return x
        if self.spec.norm_offset and x.dtype == torch.bfloat16:
            return wide_rms_norm(x, self.tensors[name], self.spec.norm_offset, self.spec.norm_eps)
        return rms_norm(x, self.norm_weight(name), self.spec.norm_eps, self.kernels)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out) through a fused projection and its adapter."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        return F.linear(x, dense(weight), bias) if self.adapter is None else self.adapter.linear(name, x, weight, bias)

    def add_linear(self, name: str, x: Tensor, residual: Tensor, after: str) -> Tensor:
        """residual + linear(x), normalised by `after` where the family does so, in one pass where nothing else is to be
        added."""
        factor, is_normed = self.spec.residual_scale, after in self.tensors
        if self.adapter is None and f"{name}.bias" not in self.tensors and factor == 1.0 and not is_normed:
            return torch.addmm(residual, x, dense(self.tensors[f"{name}.weight"]).t())
        y = self.norm(after, self.linear(name, x))
        return residual + (y if factor == 1.0 else y * factor)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the layer's gated MLP of x, all (N, hidden)."""
        spec = self.spec
        usual = (spec.activation, spec.fused, spec.norms, spec.residual_scale) == ("silu", False, "before", 1.0)
        if self.adapter is not None and usual:
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
    spec: DecoderSpec, weights: Weights, rope: RopeTable, flat: Flat, attend: Attend, wanted: Tensor
) -> Tensor:
    """Final normalised hidden states (M, hidden) of wanted (M,) of the N flat tokens, times the logits' scale.

    Of the others the last layer computes only what attention needs: most of a prompt predicts nothing.
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


def _heads(spec: DecoderSpec, weights: Weights, layer: int, qkv: Tensor) -> Tensor:
    """Fused (N, q + 2 kv) -> (N, heads + 2 kv_heads, d), queries and keys normalised where the model does so."""
    rows = qkv.view(qkv.shape[0], -1, spec.head_dim)
    if not spec.qk_norm:
        return rows
    q, k, v = torch.split(rows, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
    if spec.qk_norm == "all":
        q, k = (weights.norm(f"{layer}.{n}_norm", x.flatten(1)).view_as(x) for n, x in (("q", q), ("k", k)))
    else:
        q, k = weights.norm(f"{layer}.q_norm", q), weights.norm(f"{layer}.k_norm", k)
    return torch.cat((q, k, v), dim=1)
