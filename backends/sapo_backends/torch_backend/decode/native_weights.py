"""A model's weights as prefill and the compiled decode step want them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.decode.weights import turned
from sapo_backends.torch_backend.model.decoder import Weights
from sapo_backends.torch_backend.native.library import PANEL, Kernels


@dataclass(frozen=True, slots=True)
class Matrix:
    """A projection with its adapter in it. weight (out, in), its columns contiguous; panels (out / PANEL, in, PANEL), the last
    one filled up with zeros."""

    weight: Tensor
    bias: Tensor | None
    panels: Tensor

    @classmethod
    def of(cls, weights: Weights, name: str) -> Matrix:
        weight, adapter = weights.tensors[f"{name}.weight"], weights.adapter
        if adapter is not None:
            ups = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
            up = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
            weight = torch.addmm(weight, up, adapter.tensors[f"{name}.A"], alpha=adapter.scale)
        rows, columns = weight.shape
        filled = F.pad(weight, (0, 0, 0, -rows % PANEL)).view(-1, PANEL, columns)
        return cls(turned(weight), weights.tensors.get(f"{name}.bias"), filled.transpose(1, 2).contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + this of x."""
        y = torch.addmm(residual, x, self.weight.t())
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """q_norm, k_norm: None where the model has none."""

    norm1: Tensor
    qkv: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    norm2: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class NativeDrawing:
    """embed and head (V, hidden), the head's columns contiguous. An adapter is added to what it adapts: for a small model that
    costs less than the steps it saves."""

    kernels: Kernels
    embed: Tensor
    layers: list[NativeLayer]
    norm: Tensor
    head: Tensor

    @classmethod
    def of(cls, kernels: Kernels, spec: DecoderSpec, weights: Weights) -> NativeDrawing:
        tensors = weights.tensors
        layers = [
            NativeLayer(
                tensors[f"{layer}.norm1"],
                Matrix.of(weights, f"{layer}.qkv"),
                tensors.get(f"{layer}.q_norm"),
                tensors.get(f"{layer}.k_norm"),
                Matrix.of(weights, f"{layer}.o"),
                tensors[f"{layer}.norm2"],
                Matrix.of(weights, f"{layer}.gate_up"),
                Matrix.of(weights, f"{layer}.down"),
            )
            for layer in range(spec.layers)
        ]
        return cls(kernels, tensors["embed"], layers, tensors["norm"], turned(weights.head))
