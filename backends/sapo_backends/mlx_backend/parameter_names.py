"""Names and layouts of trained tensors: mlx_lm's inside, PEFT's and Hugging Face's outside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear
from numpy.typing import NDArray

from sapo_backends.mlx_backend.model import Tensors

PREFIX = "base_model.model."
_PEFT = {".lora_a": ".lora_A.weight", ".lora_b": ".lora_B.weight"}
Arrays = dict[str, NDArray[np.float32]]


def outside(name: str) -> str:
    """mlx_lm's name of a trained tensor -> PEFT's for a LoRA tensor, Hugging Face's otherwise."""
    for suffix, peft in _PEFT.items():
        if name.endswith(suffix):
            return f"{PREFIX}{name.removesuffix(suffix)}{peft}"
    return name


def _is_lora(name: str) -> bool:
    return name.endswith(tuple(_PEFT))


def to_arrays(tensors: Mapping[str, Any]) -> Arrays:
    """By outside names; LoRA tensors transposed, because mlx_lm keeps (in, r) and (r, out)."""
    return {
        outside(name): np.ascontiguousarray(np.array(tensor).T if _is_lora(name) else np.array(tensor))
        for name, tensor in tensors.items()
    }


def from_arrays(like: Mapping[str, Any], arrays: Mapping[str, object]) -> Tensors:
    """The inverse of to_arrays for tensors named and shaped like those. Raises ValueError on a mismatch."""
    odd = sorted(arrays.keys() ^ {outside(name) for name in like})
    if odd:
        raise ValueError(f"{odd[0]} is {'unknown' if odd[0] in arrays else 'missing'}")
    fresh: Tensors = {}
    for name, tensor in like.items():
        array = np.asarray(arrays[outside(name)], dtype=np.float32)
        array = array.T if _is_lora(name) else array
        if array.shape != tuple(tensor.shape):
            raise ValueError(f"{outside(name)} has another shape, {array.shape}")
        fresh[name] = mx.array(np.ascontiguousarray(array))
    mx.eval(fresh)
    return fresh


def linear_layers(network: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of every linear layer inside the decoder's blocks, which are those that get an adapter."""
    for name, module in network.named_modules():
        if ".layers." in name and isinstance(module, (nn.Linear, nn.QuantizedLinear)):
            yield name, module


def add_adapter(network: Any, rank: int, alpha: float, seed: int) -> Tensors:
    """Put LoRA on every linear layer and give its tensors: A uniform as PEFT initialises it, B zero."""
    rng = np.random.default_rng(seed)
    layers = [(name, LoRALinear.from_base(m, r=rank, scale=alpha / rank)) for name, m in linear_layers(network)]
    network.update_modules(tree_unflatten(layers))
    tensors: Tensors = {}
    for name, layer in layers:
        bound = 1.0 / math.sqrt(layer.lora_a.shape[0])
        initial = rng.uniform(-bound, bound, layer.lora_a.shape).astype(np.float32)
        tensors[f"{name}.lora_a"] = mx.array(initial)
        tensors[f"{name}.lora_b"] = mx.zeros(layer.lora_b.shape, mx.float32)
    return tensors


def set_scale(network: Any, scale: float) -> None:
    """alpha / rank of every adapted layer."""
    for _, module in network.named_modules():
        if isinstance(module, LoRALinear):
            module.scale = scale
