"""What the engine writes to disk.

Checkpoints: trained tensors and Adam's moments by outside names, and what they belong to. The trained model as a Hugging
Face folder.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import CheckpointCorrupt
from sapo_backends.checkpoints.engine_state import (
    MOMENTS,
    OPTIMIZER_FILES,
    TRAINED,
    read_moments,
    read_state,
    with_moments,
    write_state,
)
from sapo_backends.checkpoints.hf_folder import write_settings
from sapo_backends.mlx_backend.model import MlxModel, Tensors
from sapo_backends.mlx_backend.parameter_names import from_arrays, to_arrays
from sapo_backends.mlx_backend.update import AdamW

LOG = logging.getLogger(__name__)


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


def save(
    folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any], with_optimizer: bool = True
) -> None:
    """trained.safetensors and optimizer.safetensors by Hugging Face or PEFT names, state.json."""
    save_file(to_arrays(model.trained), folder / TRAINED)
    if with_optimizer:
        moments = {"first": to_arrays(optimizer.first), "second": to_arrays(optimizer.second)}
        save_file(with_moments(moments), folder / OPTIMIZER_FILES[0])
    write_state(folder, identity, steps=optimizer.steps)


def restore(folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any]) -> None:
    """Read what `save`, or another engine with the same names, wrote; nothing changes unless everything fits. Raises
    CheckpointCorrupt.

    Without the optimizer's file its moments are zero and no step was taken.
    """
    try:
        state = read_state(folder, identity)
        trained = from_arrays(model.trained, load_file(folder / TRAINED))
        moments = _moments(folder, model)
        steps = int(state["steps"]) if moments is not None else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    fresh = AdamW(trained)
    model.trained = trained
    optimizer.first, optimizer.second = (fresh.first, fresh.second) if moments is None else moments
    optimizer.steps = steps
    model.settle()


def _moments(folder: Path, model: MlxModel) -> tuple[Tensors, Tensors] | None:
    """None where there are none, and where they lie in an order that only the torch engine knows."""
    read = read_moments(folder, load_file)
    if read is None:
        return None
    found, named = read
    if not named:
        LOG.warning(
            "The optimizer starts anew: its state in %s has no names, as the torch engine wrote it before. Train one "
            "round with torch, and it goes along.",
            folder,
        )
        return None
    first, second = (from_arrays(model.trained, found[moment]) for moment in MOMENTS)
    return first, second
