"""A model's weights in the forms that decoding wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.decode.step import Layer, Projection
from sapo_backends.torch_backend.model.decoder import Weights
from sapo_backends.torch_backend.paths import WeightLayout
from sapo_backends.torch_backend.runtime.onednn import pack


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """prefill: the weights as training has them. layers, head: laid out for products with few rows."""

    prefill: Weights
    layers: list[Layer]
    head: Projection

    @classmethod
    def of(cls, spec: DecoderSpec, weights: Weights, layout: WeightLayout) -> DecodeWeights:
        """Lay the weights out. A batch reads them once for each token it samples, so that pays from a dozen on; an
        adapter stays as it is and is added to what the laid-out layer gives."""
        lay_out = _LAYOUTS[layout]
        layers = [_layer(spec, weights, layer, lay_out) for layer in range(spec.layers)]
        return cls(weights, layers, Projection(lay_out(weights.head), None, [], [], 0.0))


LayOut = Callable[[Tensor], Tensor]


def _as_stored(weight: Tensor) -> Tensor:
    return weight


_LAYOUTS: dict[WeightLayout, LayOut] = {"packed": pack, "as stored": _as_stored}


def _projection(weights: Weights, name: str, lay_out: LayOut) -> Projection:
    weight, bias = lay_out(weights.tensors[f"{name}.weight"]), weights.tensors.get(f"{name}.bias")
    adapter = weights.adapter
    if adapter is None:
        return Projection(weight, bias, [], [], 0.0)
    lora_b = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
    return Projection(weight, bias, [adapter.tensors[f"{name}.A"]], [torch.block_diag(*lora_b)], adapter.scale)  # type: ignore[no-untyped-call]


def _layer(spec: DecoderSpec, weights: Weights, layer: int, lay_out: LayOut) -> Layer:
    tensors = weights.tensors
    norms = [tensors[f"{layer}.{name}_norm"] for name in "qk"] if spec.qk_norm else []
    fused = lay_out is pack and weights.adapter is None  # oneDNN's own gate knows no adapter
    mlp = [_projection(weights, f"{layer}.gate_up", _as_stored if fused else lay_out)]
    if fused:
        halves = zip(mlp[0].weight.chunk(2), [None, None] if mlp[0].bias is None else mlp[0].bias.chunk(2), strict=True)
        mlp = [Projection(pack(weight), bias, [], [], 0.0) for weight, bias in halves]
    return Layer(
        norm1=tensors[f"{layer}.norm1"],
        qkv=_projection(weights, f"{layer}.qkv", lay_out),
        head_norms=norms,
        out=_projection(weights, f"{layer}.o", lay_out),
        norm2=tensors[f"{layer}.norm2"],
        mlp=mlp,
        down=_projection(weights, f"{layer}.down", lay_out),
    )
