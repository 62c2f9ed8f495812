"""Versions that decide whether two runs can give the same numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_ALWAYS = ("sapo-desktop", "reasoning-gym", "numpy", "tokenizers")
_BY_BACKEND = {
    "torch": ("torch", "transformers"),
    "mlx": ("mlx", "mlx-lm"),
    "llamacpp": ("llama-cpp-python",),
}


def versions(backend: str) -> dict[str, str]:
    """Python, platform and the packages that compute, as installed."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in (*_ALWAYS, *_BY_BACKEND.get(backend, ())):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
