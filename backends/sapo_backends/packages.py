"""The packages that engines and extras need, and the command that brings them into the environment that this runs in."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = ("torch", "transformers", "peft")
MLX = ("mlx" if sys.platform == "darwin" else "mlx[cpu]", "mlx-lm")
LLAMA = ("llama-cpp-python", "gguf")
"""What the engines of these names need."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds for processors: 200 MB, where PyPI's wheel for Linux brings 2.7 GB for NVIDIA's GPUs."""


def install(*packages: str, prefix: str = sys.prefix, cpu: bool | None = None) -> str:
    """The command that brings packages into the environment at `prefix`: the one that this runs in. It names no folder of
    the person's. cpu: torch is the build for processors; None: on Linux without an NVIDIA driver."""
    if cpu is None:
        cpu = "torch" in packages and sys.platform == "linux" and not has_nvidia()
    if cpu and "torch" in packages:
        rest = tuple(name for name in packages if name != "torch")
        both = (("torch", "--index-url", CPU_INDEX), rest)
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
