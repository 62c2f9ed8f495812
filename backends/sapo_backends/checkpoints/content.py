"""Which model a folder holds, whatever it is called and wherever it lies: a digest of its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sapo_backends.checkpoints.locate import weight_files

SAMPLE = 1 << 16
"""Bytes of each weight file that are read at its beginning (the names and shapes of all tensors), in the middle and at its
end. Reading all of a 3 GB file would take longer than loading it."""


def content_id(folder: Path) -> str:
    """Equal for copies of one model; another after training, or for another model of the same shape. Raises OSError."""
    files, digest = weight_files(folder), hashlib.sha256()
    if not files:
        raise FileNotFoundError(f"{folder} has no weights")
    for file in files:
        size = file.stat().st_size
        digest.update(b"%d\0" % size)
        with file.open("rb") as stream:
            for start in (0, size // 2, max(0, size - SAMPLE)):
                stream.seek(start)
                digest.update(stream.read(SAMPLE))
    return digest.hexdigest()[:32]
