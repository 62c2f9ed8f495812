"""state.json of a checkpoint: what the tensors beside it belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapo_backends.base import CheckpointCorrupt

NAME = "state.json"


def write_state(folder: Path, identity: Mapping[str, object], **more: object) -> None:
    """Write the identity of a checkpoint and what else is given. Raises OSError."""
    (folder / NAME).write_text(json.dumps({"format": 1, **more, **identity}, indent=1), encoding="utf-8")


def read_state(folder: Path, identity: Mapping[str, object]) -> dict[str, Any]:
    """What write_state wrote. Raises CheckpointCorrupt when it belongs to something else; OSError, ValueError and
    TypeError when it cannot be read."""
    state: dict[str, Any] = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
    # "base" is the content of the model: where both tell it, its name or path does not matter.
    known = "base" in identity and "base" in state
    wrong = [
        key for key, value in identity.items() if state.get(key) != value and key != ("model" if known else "base")
    ]
    if wrong:
        raise CheckpointCorrupt(f"The checkpoint in {folder} was written for another {wrong[0]}.")
    return state
