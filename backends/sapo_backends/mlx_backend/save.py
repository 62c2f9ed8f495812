"""What the engine writes to disk.

Checkpoints: trained tensors and Adam's moments by outside names, and what they belong to. The trained model as a Hugging
Face folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import CheckpointCorrupt
from sapo_backends.checkpoints.engine_state import read_state, write_state
from sapo_backends.checkpoints.hf_folder import write_settings
from sapo_backends.mlx_backend.model import MlxModel
from sapo_backends.mlx_backend.parameter_names import from_arrays, to_arrays
from sapo_backends.mlx_backend.update import AdamW


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


FILES = ("trained", "first", "second")
OPTIMIZER_FILES = ("first.safetensors", "second.safetensors")


def save(
    folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any], with_optimizer: bool = True
) -> None:
    """trained, first and second .safetensors, state.json."""
    sets = (model.trained, optimizer.first, optimizer.second)[: 3 if with_optimizer else 1]
    for name, tensors in zip(FILES, sets, strict=False):
        save_file(to_arrays(tensors), folder / f"{name}.safetensors")
    write_state(folder, identity, steps=optimizer.steps)


def restore(folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any]) -> None:
    """Read what `save` wrote; nothing changes unless everything fits. Raises CheckpointCorrupt.

    Without both files of the optimizer its moments are zero and no step was taken.
    """
    try:
        state = read_state(folder, identity)
        whole = all((folder / name).exists() for name in OPTIMIZER_FILES)
        read = [
            from_arrays(model.trained, load_file(folder / f"{name}.safetensors")) for name in FILES[: 3 if whole else 1]
        ]
        steps = int(state["steps"]) if whole else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    fresh = AdamW(read[0])
    model.trained = read[0]
    optimizer.first, optimizer.second = read[1:] if whole else (fresh.first, fresh.second)
    optimizer.steps = steps
    model.settle()
