"""The trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

from sapo_backends.checkpoints.hf_folder import write_settings
from sapo_backends.mlx_backend.model import MlxModel


def _whole(module: Any) -> Any:
    """The unquantised weight of a quantised module."""
    return mx.dequantize(
        module.weight, module.scales, module.biases, group_size=module.group_size, bits=module.bits, mode=module.mode
    )


def merged(model: MlxModel) -> dict[str, Any]:
    """Weights by Hugging Face name: trained ones in float32, adapters added, 4-bit ones spread out again."""
    weights: dict[str, Any] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.network.named_modules():
        if isinstance(module, LoRALinear):
            fused = module.fuse(dequantize=True)
            weights |= {f"{name}.{key}": tensor for key, tensor in tree_flatten(fused.parameters())}
            inside += (f"{name}.",)
        elif isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            weights[f"{name}.weight"] = _whole(module)
            if "bias" in module:
                weights[f"{name}.bias"] = module.bias
            inside += (f"{name}.",)
    for name, tensor in tree_flatten(model.network.parameters()):
        if not name.startswith(inside or ("\0",)):
            weights[name] = tensor
    whole = {name: tensor for name, tensor in weights.items() if ".linear." not in name}
    return whole | {name: tensor for name, tensor in model.trained.items() if ".lora_" not in name}


def export(model: MlxModel, source: Path, folder: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer."""
    weights = merged(model)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    kind = str(next(iter(weights.values())).dtype).removeprefix("mlx.core.")
    write_settings(source, folder, kind)
