"""Weights in one file or several: which ones a folder should hold, and which of them are one set."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

_SHARD = re.compile(r"(.*-)(\d{1,6})-of-(0*[1-9]\d{0,3})(\.safetensors)")


def one_set(names: Collection[str]) -> set[str]:
    """Of the files of a model those with its weights, once: of two sets the one that transformers reads, and no adapter. The
    copy that some vendors put beside them only where there is no other."""
    if "model.safetensors" in names:
        return {"model.safetensors"}
    found = {name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")}
    return {name for name in found if not name.startswith("consolidated")} or found


def missing(folder: Path, here: Collection[str]) -> list[str]:
    """Names of the files of weights that are not here, though the index lists them or, without one, another's name counts them.

    here: names of the files of weights in the folder.
    """
    if not here or "model.safetensors" in here:
        return []
    promised = _in_index(folder)
    if not promised and (of := _SHARD.fullmatch(min(here))):
        name, number, count, end = of.groups()
        first = min(int(number), 1)  # a few count from 0
        promised = {f"{name}{first + i:0{len(number)}}-of-{count}{end}" for i in range(int(count))}
    return sorted(promised - set(here))


def _in_index(folder: Path) -> set[str]:
    """Names of files; none without an index that can be read."""
    try:
        content = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return {str(name) for name in content["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return set()
