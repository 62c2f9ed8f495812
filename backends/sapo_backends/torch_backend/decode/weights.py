"""A model's weights in the forms that decoding wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.common import hardware
from sapo_backends.torch_backend.decode.step import Layer, Projection
from sapo_backends.torch_backend.model.decoder import Weights


@once
def packs_bfloat16() -> bool:
    """Whether oneDNN's own layout of bfloat16 weights works here; it saves a third of a small product's time."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        x, weight = (torch.randn(n, 32).bfloat16() for n in (5, 48))
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 5)
        gate = torch.ops.mkldnn._linear_pointwise(x, packed, None, "swish", [], "")
        found = torch.ops.mkldnn._linear_pointwise(x, gate, packed, None, "mul")
        y = F.linear(x.float(), weight.float())
        return bool(((F.silu(y) * y - found).abs() <= 0.05 * (1 + y.square())).all())
    except (AttributeError, RuntimeError):
        return False


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """prefill: the weights as training has them. layers, head: laid out for products with few rows."""

    prefill: Weights
    layers: list[Layer]
    head: Projection

    @classmethod
    def of(cls, spec: DecoderSpec, weights: Weights) -> DecodeWeights:
        """Lay the weights out. A batch reads them once for each token it samples, so that pays from a dozen on; an
        adapter stays as it is and is added to what the laid-out layer gives."""
        layout = _layout_for(weights)
        layers = [_layer(spec, weights, layer, layout) for layer in range(spec.layers)]
        return cls(weights, layers, Projection(layout(weights.head), None, [], [], 0.0))


WeightLayout = Callable[[Tensor], Tensor]


def _layout_for(weights: Weights) -> WeightLayout:
    """How these weights are laid out for products with few rows."""
    head, parameters = weights.head, sum(tensor.numel() for tensor in weights.tensors.values())
    if head.device.type != "cpu":
        return _row_major
    if head.dtype == torch.bfloat16 and packs_bfloat16():
        return _onednn_packed
    with_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return (
        column_major if with_mkl and head.dtype == torch.float32 and parameters < hardware.SHARDED_BELOW else _row_major
    )


def _onednn_packed(weight: Tensor) -> Tensor:
    """oneDNN's own form."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return result


def column_major(weight: Tensor) -> Tensor:
    """The same matrix, its columns contiguous: MKL multiplies 8 rows with it in half the time, 64 in five sixths."""
    return weight.t().contiguous().t()


def _row_major(weight: Tensor) -> Tensor:
    return weight


def _projection(weights: Weights, name: str, layout: WeightLayout) -> Projection:
    weight, bias = layout(weights.tensors[f"{name}.weight"]), weights.tensors.get(f"{name}.bias")
    adapter = weights.adapter
    if adapter is None:
        return Projection(weight, bias, [], [], 0.0)
    lora_b = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
    return Projection(weight, bias, [adapter.tensors[f"{name}.A"]], [torch.block_diag(*lora_b)], adapter.scale)  # type: ignore[no-untyped-call]


def _layer(spec: DecoderSpec, weights: Weights, layer: int, layout: WeightLayout) -> Layer:
    tensors = weights.tensors
    norms = [tensors[f"{layer}.{name}_norm"] for name in "qk"] if spec.qk_norm else []
    fused = layout is _onednn_packed and weights.adapter is None  # oneDNN's own gate knows no adapter
    mlp = [_projection(weights, f"{layer}.gate_up", _row_major if fused else layout)]
    if fused:
        halves = zip(mlp[0].weight.chunk(2), [None, None] if mlp[0].bias is None else mlp[0].bias.chunk(2), strict=True)
        mlp = [Projection(_onednn_packed(weight), bias, [], [], 0.0) for weight, bias in halves]
    return Layer(
        norm1=tensors[f"{layer}.norm1"],
        qkv=_projection(weights, f"{layer}.qkv", layout),
        head_norms=norms,
        out=_projection(weights, f"{layer}.o", layout),
        norm2=tensors[f"{layer}.norm2"],
        mlp=mlp,
        down=_projection(weights, f"{layer}.down", layout),
    )
