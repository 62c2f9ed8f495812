"""What the engine writes to disk: trained tensors and Adam's moments by outside names, and what they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import CheckpointCorrupt
from sapo_backends.checkpoints.engine_state import read_state, write_state
from sapo_backends.mlx_backend.model import MlxModel
from sapo_backends.mlx_backend.parameter_names import from_arrays, to_arrays
from sapo_backends.mlx_backend.train.optimizer import AdamW

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
