"""The packages that engines and extras need, and the command that installs them into the running environment."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

TORCH = ("torch", "transformers", "peft")
MLX = ("mlx" if sys.platform == "darwin" else "mlx[cpu]", "mlx-lm")
LLAMA = ("llama-cpp-python", "gguf")
"""Packages that each engine needs."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds: 200 MB, while PyPI's Linux wheel pulls in 2.7 GB for NVIDIA GPUs."""
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
"""PyTorch's index of CUDA 13.0 builds, the version locked for Linux: PyPI's Windows wheels come without CUDA."""


def is_here(module: str) -> bool:
    """Whether a module can be found, without importing it. A half-installed module counts as missing."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def torch_index() -> str:
    """The index that has this machine's build of torch; "" means PyPI."""
    if sys.platform == "linux":
        return "" if has_nvidia() else CPU_INDEX
    return CUDA_INDEX if sys.platform == "win32" and has_nvidia() else ""


def install_command(*packages: str, prefix: str = sys.prefix) -> str:
    """The command that installs packages into the environment at `prefix`, by default the running one. It contains no
    personal folder names."""
    index = torch_index() if "torch" in packages else ""
    if "archive-v0" in Path(prefix).parts:  # the environment of a uvx call, which nothing can be installed into
        backend = "--torch-backend auto " if "torch" in packages else ""
        return f"uvx {backend}{' '.join(f'--with {shlex.quote(name)}' for name in packages)} --from WHEEL sapo-desktop"
    if index:
        rest = tuple(name for name in packages if name != "torch")
        both = (("torch", "--index-url", index), rest)
        return " && ".join(_install(words, Path(prefix)) for words in both if words)
    return _install(packages, Path(prefix))


def _install(words: Sequence[str], here: Path) -> str:
    names, parts = shlex.join(words), here.parts
    if "pipx" in parts or (here / "pipx_metadata.json").exists():
        return f"pipx inject sapo-desktop {names}"
    if parts[-3:-1] == ("uv", "tools") or (here / "uv-receipt.toml").exists():  # UV_TOOL_DIR, Windows
        return f'uv pip install --python "$(uv tool dir)/sapo-desktop" {names}'
    pip = (".venv\\Scripts\\pip" if sys.platform == "win32" else ".venv/bin/pip") if parts[-1] == ".venv" else "pip"
    return f"{pip} install {names}"


def has_nvidia() -> bool:
    """Whether there is an NVIDIA driver, that is, a GPU with its own memory."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
