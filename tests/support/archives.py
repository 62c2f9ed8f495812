"""Archives of the fixtures."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, to: Path) -> None:
    """Pythons before 3.11.4 know no filter."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(to, filter="data")
        else:
            packed.extractall(to)
