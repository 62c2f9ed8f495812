"""What an engine writes to disk: the trained tensor, Adam's moments and a JSON with what they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

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
from sapo_backends.torch_backend.model.flat_parameters import Layout
from sapo_backends.torch_backend.update import FlatAdamW


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
    save_file(_by_name(layout, flat), folder / TRAINED)
    if with_optimizer:
        moments = {"first": _by_name(layout, optimizer.first), "second": _by_name(layout, optimizer.second)}
        save_file(with_moments(moments), folder / OPTIMIZER_FILES[0])
    write_state(folder, identity, steps=optimizer.steps)


def restore(folder: Path, layout: Layout, flat: Tensor, optimizer: FlatAdamW, identity: dict[str, Any]) -> None:
    """Read what `save`, or another engine with the same names, wrote into the given tensors; they change only if
    everything fits. Raises CheckpointCorrupt.

    Without the optimizer's file the moments are zero and no step was taken.
    """
    try:
        state = read_state(folder, identity)
        fresh = torch.empty(layout.size)
        layout.fill(fresh, load_file(folder / TRAINED))
        moments = _moments(folder, layout)
        steps = int(state["steps"]) if moments is not None else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    with torch.no_grad():
        flat.copy_(fresh)
        for tensor, moment in zip((optimizer.first, optimizer.second), moments or (None, None), strict=True):
            tensor.zero_() if moment is None else tensor.copy_(moment)
    optimizer.steps = steps


def _moments(folder: Path, layout: Layout) -> list[Tensor] | None:
    """The two moments as flat as the parameters. Raises RuntimeError, OSError, SafetensorError."""
    read = read_moments(folder, load_file)
    if read is None:
        return None
    found, named = read
    if not named:
        flat = [found[moment][""] for moment in MOMENTS]
        if any(tensor.shape != (layout.size,) for tensor in flat):
            raise RuntimeError("the optimizer's state does not fit the model")
        return flat
    fresh = [torch.empty(layout.size) for _ in MOMENTS]
    for tensor, moment in zip(fresh, MOMENTS, strict=True):
        layout.fill(tensor, found[moment])
    return fresh
