"""A model's weights as prefill and the compiled decode step want them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.model.decoder import Weights
from sapo_backends.torch_backend.native.library import PANEL, Kernels


def _column_major(weight: Tensor) -> Tensor:
    """The same matrix (out, in), its columns contiguous: MKL multiplies 8 rows with it in half the time, 64 in five
    sixths."""
    return weight.t().contiguous().t()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A projection with its adapter in it. weight (out, in), its columns contiguous; panels (out / PANEL, in, PANEL),
    the last one filled up with zeros."""

    weight: Tensor
    bias: Tensor | None
    panels: Tensor

    @classmethod
    def of(cls, weights: Weights, name: str) -> PackedLinear:
        """The fused projection `name`, an adapter merged into it."""
        weight, adapter = weights.tensors[f"{name}.weight"], weights.adapter
        if adapter is not None:
            ups = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
            up = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
            weight = torch.addmm(weight, up, adapter.tensors[f"{name}.A"], alpha=adapter.scale)
        rows, columns = weight.shape
        filled = F.pad(weight, (0, 0, 0, -rows % PANEL)).view(-1, PANEL, columns)
        return cls(_column_major(weight), weights.tensors.get(f"{name}.bias"), filled.transpose(1, 2).contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out)."""
        return F.linear(x, self.weight, self.bias)

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual (N, out) + this projection of x (N, in)."""
        y = torch.addmm(residual, x, self.weight.t())
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """q_norm, k_norm: None where the model has none."""

    norm1: Tensor
    qkv: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: PackedLinear
    norm2: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class NativeDecodeWeights:
    """embed and head (V, hidden), the head's columns contiguous. An adapter is added to what it adapts: for a small
    model that costs less than the steps it saves."""

    kernels: Kernels
    embed: Tensor
    layers: list[NativeLayer]
    norm: Tensor
    head: Tensor

    @classmethod
    def of(cls, kernels: Kernels, spec: DecoderSpec, weights: Weights) -> NativeDecodeWeights:
        """Lay the weights of a model out, once a batch."""
        tensors = weights.tensors
        layers = [
            NativeLayer(
                tensors[f"{layer}.norm1"],
                PackedLinear.of(weights, f"{layer}.qkv"),
                tensors.get(f"{layer}.q_norm"),
                tensors.get(f"{layer}.k_norm"),
                PackedLinear.of(weights, f"{layer}.o"),
                tensors[f"{layer}.norm2"],
                PackedLinear.of(weights, f"{layer}.gate_up"),
                PackedLinear.of(weights, f"{layer}.down"),
            )
            for layer in range(spec.layers)
        ]
        return cls(kernels, tensors["embed"], layers, tensors["norm"], _column_major(weights.head))
