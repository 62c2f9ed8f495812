"""What an engine writes to disk: the trained tensor, Adam's moments and a JSON with what they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sapo_backends.base import CheckpointCorrupt
from sapo_backends.checkpoints.engine_state import read_state, write_state
from sapo_backends.torch_backend.model.flat_parameters import Layout
from sapo_backends.torch_backend.update import FlatAdamW

MOMENTS = ("first", "second")
OPTIMIZER_FILES = ("optimizer.safetensors",)


def _by_name(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    return {name: view.contiguous().cpu() for name, view in layout.named_parts(flat)}


def save(
    folder: Path,
    layout: Layout,
    flat: Tensor,
    optimizer: FlatAdamW,
    identity: dict[str, Any],
    with_optimizer: bool = True,
) -> None:
    """trained.safetensors and optimizer.safetensors by Hugging Face or PEFT names, state.json."""
    save_file(_by_name(layout, flat), folder / "trained.safetensors")
    if with_optimizer:
        moments = {"first": optimizer.first.cpu(), "second": optimizer.second.cpu()}
        save_file(moments, folder / "optimizer.safetensors")
    write_state(folder, identity, steps=optimizer.steps)


def restore(folder: Path, layout: Layout, flat: Tensor, optimizer: FlatAdamW, identity: dict[str, Any]) -> None:
    """Read what `save` wrote into the given tensors; they change only if everything fits. Raises CheckpointCorrupt.

    Without the optimizer's file the moments are zero and no step was taken.
    """
    try:
        state = read_state(folder, identity)
        fresh = torch.empty(layout.size)
        layout.fill(fresh, load_file(folder / "trained.safetensors"))
        whole = (folder / "optimizer.safetensors").exists()
        zeros = dict.fromkeys(MOMENTS, torch.zeros(layout.size))
        moments = load_file(folder / "optimizer.safetensors") if whole else zeros
        if any(moments[name].shape != (layout.size,) for name in MOMENTS):
            raise CheckpointCorrupt(f"The optimizer state in {folder} does not fit the model.")
        steps = int(state["steps"]) if whole else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    with torch.no_grad():
        flat.copy_(fresh)
        optimizer.first.copy_(moments["first"])
        optimizer.second.copy_(moments["second"])
    optimizer.steps = steps
