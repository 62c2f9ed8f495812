"""The folder for files that backends can regenerate."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The app's cache folder; SAPO_HOME moves it like everything else."""
    root = os.environ.get("SAPO_HOME")
    return Path(root).expanduser() / "cache" if root else platformdirs.user_cache_path("sapo-desktop", appauthor=False)
