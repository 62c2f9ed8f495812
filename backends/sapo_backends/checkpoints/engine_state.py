"""What engines that train by Adam write beside the trained tensors: state.json, and Adam's moments by outside names.

Outside names and layouts are Hugging Face's and PEFT's, so that another engine goes on with what one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sapo_backends.base import CheckpointCorrupt

NAME = "state.json"
TRAINED = "trained.safetensors"
OPTIMIZER_FILES = ("optimizer.safetensors",)
"""Adam's moments, as "first.NAME" and "second.NAME" of every trained tensor."""
MOMENTS = ("first", "second")
Tensor = TypeVar("Tensor")


def write_state(folder: Path, identity: Mapping[str, object], **more: object) -> None:
    """Write the identity of a checkpoint and what else is given. Raises OSError."""
    (folder / NAME).write_text(json.dumps({"format": 1, **more, **identity}, indent=1), encoding="utf-8")


def read_state(folder: Path, identity: Mapping[str, object]) -> dict[str, Any]:
    """What write_state wrote. Raises CheckpointCorrupt when it belongs to something else; OSError, ValueError and
    TypeError when it cannot be read."""
    try:
        state: dict[str, Any] = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError(f"{NAME} is nested too deep") from None
    # "base" is the content of the model: where both tell it, its name or path does not matter.
    known = "base" in identity and "base" in state
    wrong = [
        key for key, value in identity.items() if state.get(key) != value and key != ("model" if known else "base")
    ]
    if wrong:
        raise CheckpointCorrupt(f"The checkpoint in {folder} was written for another {wrong[0]}.")
    return state


def with_moments(moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """first and second, each by outside names -> the tensors of the optimizer's file."""
    return {f"{moment}.{name}": moments[moment][name] for moment in MOMENTS for name in moments[moment]}


def read_moments(
    folder: Path, load: Callable[[Path], Mapping[str, Tensor]]
) -> tuple[dict[str, dict[str, Tensor]], bool] | None:
    """(first and second by outside names, whether they have names); None where the folder has no moments.

    Moments without names are two tensors called "": what the torch engine wrote before, in the order of its memory.
    Two files, one a moment, is what the MLX engine wrote before. Raises what load raises.
    """
    if (folder / OPTIMIZER_FILES[0]).exists():
        tensors = load(folder / OPTIMIZER_FILES[0])
        if tensors.keys() == set(MOMENTS):
            return {moment: {"": tensors[moment]} for moment in MOMENTS}, False
        found: dict[str, dict[str, Tensor]] = {moment: {} for moment in MOMENTS}
        for key, tensor in tensors.items():
            moment, _, name = key.partition(".")
            found[moment][name] = tensor
        return found, True
    files = {moment: folder / f"{moment}.safetensors" for moment in MOMENTS}
    if not all(file.exists() for file in files.values()):
        return None
    return {moment: dict(load(file)) for moment, file in files.items()}, True
