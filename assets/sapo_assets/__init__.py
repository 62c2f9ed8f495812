"""Data that ships with the app: the starter models, their recipe and their card."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAMES = ("starter", "starter-1m")
"""Bundled models, the one that people meet first in front."""


def model_path(name: str) -> Path:
    """The Hugging Face folder of a bundled model. Raises KeyError for another name."""
    return models()[name]


def models() -> dict[str, Path]:
    """Name -> folder of every model that this installation carries."""
    folder = Path(str(files("sapo_assets"))) / "models"
    return {name: folder / name for name in NAMES if (folder / name / "config.json").is_file()}


_IN_WORDS = {
    "starter": "a toy of 5M, bundled: to see how it works",
    "starter-1m": "a smaller toy of 1M, worse and faster",
}


def describe_model(name: str) -> str:
    """What a bundled model is, in a few words for people."""
    return _IN_WORDS.get(name, "a toy, bundled: to see how it works")
