"""Weights in several files: which ones a folder should hold."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

_SHARD = re.compile(r"(.*-)(\d+)-of-(\d+)(\.safetensors)")


def in_index(folder: Path) -> set[str]:
    """Names of the files of weights that the folder's index lists; none without an index. Raises ValueError: it is damaged."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return set()
    try:
        found = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is damaged: {error}") from error
    if not found:
        raise ValueError(f"{index} lists no file")
    return found


def missing(folder: Path, here: Collection[str]) -> list[str]:
    """Names of the files of weights that are not here, though the index lists them or, without one, another's name counts them.

    here: names of the files of weights in the folder.
    """
    if "model.safetensors" in here:
        return []
    try:
        promised = in_index(folder)
    except ValueError:
        promised = set()
    if not promised and (of := _SHARD.fullmatch(min(here))):
        name, number, count, end = of.groups()
        first = min(int(number), 1)  # a few count from 0
        promised = {f"{name}{first + i:0{len(number)}}-of-{count}{end}" for i in range(int(count))}
    return sorted(promised - set(here))
