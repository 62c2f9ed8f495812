"""The packages that engines and extras need, and the command that brings them into the environment that this runs in."""

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
"""What the engines of these names need."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds for processors: 200 MB, where PyPI's wheel for Linux brings 2.7 GB for NVIDIA's GPUs."""
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
"""PyTorch's own index of builds with CUDA 13.0, as the locked ones for Linux: PyPI's wheels for Windows are without."""


def is_here(module: str) -> bool:
    """Whether a module can be found, without importing it. One that is half there is not."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def torch_index() -> str:
    """The index that has this machine's build of torch; "": PyPI has it."""
    if sys.platform == "linux":
        return "" if has_nvidia() else CPU_INDEX
    return CUDA_INDEX if sys.platform == "win32" and has_nvidia() else ""


def install_command(*packages: str, prefix: str = sys.prefix) -> str:
    """The command that brings packages into the environment at `prefix`: the one that this runs in. It names no folder of
    the person's."""
    index = torch_index() if "torch" in packages else ""
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
    """Whether there is an NVIDIA driver, whose GPUs have memory of their own."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
