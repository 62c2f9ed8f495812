"""Set up a virtual environment with the app, its engines and its tests: python packaging/setup_venv.py .venv

Standard library only: this runs before anything is installed. On Linux and Windows a bare `torch` may be the CUDA build
(gigabytes): without an NVIDIA driver the CPU build is taken, and this says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import no_compiler

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
CPU_TORCH = "2.13.0"
"""The release of the CPU build that is tried when there is no NVIDIA driver."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def run(*command: str) -> bool:
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode == 0


def must(*command: str) -> None:
    if not run(*command):
        sys.exit(f"This step failed: {' '.join(command)}\nMend what it says above and run make again.")


def has_nvidia() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def install_torch(python: str) -> None:
    """torch first, so that the app's own requirement finds it and pulls nothing bigger."""
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        return
    if platform.system() == "Darwin" or has_nvidia():
        must(python, "-m", "pip", "install", "-q", "torch>=2.6")
        return
    print("No NVIDIA driver here: installing the CPU build of torch (about 200 MB instead of several GB).", flush=True)
    local = f"torch=={CPU_TORCH}+cpu"
    if run(python, "-m", "pip", "install", "-q", local):
        return
    must(python, "-m", "pip", "install", "-q", f"torch=={CPU_TORCH}", "--index-url", CPU_INDEX)


def install_pycosat(python: str, pins: Path) -> None:
    """The one dependency that pip has to compile, or what stands for it where that fails."""
    if run(python, "-m", "pip", "install", "-q", "-c", str(pins), "pycosat"):
        return
    if os.environ.get("CI") == "true":
        sys.exit("pycosat was not compiled. Under CI=true every task must be there: install a C compiler.")
    print("pycosat was not compiled (it needs a C compiler): everything works but the task zebra_puzzles.", flush=True)
    must(python, "-m", "pip", "install", "-q", str(no_compiler.write(pins.parent)))


def locked_versions() -> str:
    """The versions of the lock file, but torch's (see install_torch), without hashes: pip takes no editable project with
    them."""
    lines = (ROOT / "packaging" / "requirements.lock").read_text("utf-8").splitlines()
    return "".join(
        line.rstrip(" \\") + "\n" for line in lines if "==" in line and not line.startswith((" ", "#", "torch=="))
    )


def main() -> None:
    if sys.version_info < OLDEST:
        sys.exit(f"Python 3.11 or newer is needed, this is {platform.python_version()}.")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").absolute()
    if not (folder / "pyvenv.cfg").exists():
        venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    install_torch(python)
    pins = folder / "locked.txt"
    pins.write_text(locked_versions(), "utf-8")
    install_pycosat(python, pins)
    extras = "dev,lab,lan,mcp,redis,serve,tensorboard,torch" + (",mlx,4bit" if platform.system() == "Linux" else "")
    must(python, "-m", "pip", "install", "-q", "-c", str(pins), "-e", f"{ROOT}[{extras}]")
    (folder / ".ready").touch()
    print(f"Ready. Start the dashboard: {Path(python).parent / 'sapo-desktop'}")


if __name__ == "__main__":
    main()
