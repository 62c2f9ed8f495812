"""Folders on the disk: their bytes, the digests of their files, and making sure that they are really there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from sapo_swarm.whole_file import on_disk


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; one that goes away meanwhile, or cannot be looked at, counts nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def free_bytes(place: Path) -> int:
    """Free on the disk that `place` lies on, or will lie on. Raises OSError."""
    return shutil.disk_usage(next(path for path in (place, *place.absolute().parents) if path.exists())).free


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below, by its path from there. Raises OSError."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def weights_digest(digests: dict[str, str], optimizer_files: tuple[str, ...]) -> str:
    """SHA-256 of the trainable weights: of their one file, or of the sorted lines "digest  name" where there are several.

    Files that are no tensors do not count. "" when there are none.
    """
    tensors = {n: d for n, d in digests.items() if n.endswith(".safetensors") and n not in optimizer_files}
    if len(tensors) <= 1:
        return next(iter(tensors.values()), "")
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(tensors.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def sync_tree(folder: Path) -> None:
    """Return when all of it is on the disk. Raises OSError."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir() and os.name == "nt":
            continue
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes writable handles only
        try:
            on_disk(handle)
        finally:
            os.close(handle)


@contextmanager
def tensors_as_files() -> Iterator[None]:
    """What safetensors says of the disk in an error of its own is an OSError like any other."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"The weights cannot be written ({str(error)[:200]}). Free some disk space.") from error
