"""Set up a virtual environment with the app, its engines and its tests: python packaging/setup_venv.py .venv

Standard library only: this runs before anything is installed. What is installed has the versions and hashes of the locks,
but for two builds of torch that PyPI lacks, which are taken with a sentence: the one for processors on Linux without an
NVIDIA driver, where PyPI's is gigabytes of CUDA, and the one with CUDA on Windows with such a driver.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import no_compiler

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 14)
"""The Pythons that were tried (docs/how-to/install.md); the locked torch has wheels for them."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
"""As in sapo_backends.packages."""
LOCKS = ("requirements.lock", "tools.lock")
CUDA = ("torch==", "triton==", "nvidia-", "cuda-")
"""Locked packages that a build of PyTorch's own index does without."""
INSTALL = ("-m", "pip", "install", "-q", "--no-deps", "--use-pep517")
"""Every package is named: by a lock, or here. An old pip installs sources without a wheel and does not compile their modules."""


def run(*command: str) -> bool:
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode == 0


def must(*command: str) -> None:
    if not run(*command):
        sys.exit(f"This step failed: {' '.join(command)}\nMend what it says above and run make again.")


def has_nvidia() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def torch_index() -> str:
    """PyTorch's own index that has this machine's build of torch; "": the locked one is it."""
    if platform.system() == "Linux":
        return "" if has_nvidia() else CPU_INDEX
    return CUDA_INDEX if platform.system() == "Windows" and has_nvidia() else ""


def install_torch(python: str, index: str) -> None:
    """The locked release as that index builds it, from the index that pip is set to, or else from that one."""
    print(
        "No NVIDIA driver here: installing the CPU build of torch (about 200 MB instead of several GB)."
        if index == CPU_INDEX
        else "An NVIDIA driver is here: installing the build of torch with CUDA (several GB).",
        flush=True,
    )
    torch = next(package for package in locked() if package.startswith("torch=="))
    if not run(python, *INSTALL, f"{torch}+{index.rpartition('/')[2]}"):
        must(python, *INSTALL, torch, "--index-url", index)


def install_pycosat(python: str, lock: Path) -> None:
    """The one dependency that pip has to compile, with the locked setuptools, or what stands for it where that fails."""
    if run(python, *INSTALL, "--no-build-isolation", "--require-hashes", "-r", str(lock)):
        return
    if os.environ.get("CI") == "true":
        sys.exit("pycosat was not compiled. Under CI=true every task must be there: install a C compiler.")
    print(
        "pycosat was not compiled (pip says why; it needs a C compiler): everything works but the task zebra_puzzles.",
        flush=True,
    )
    must(python, *INSTALL, str(no_compiler.write(lock.parent)))


def blocks(text: str) -> list[str]:
    """A lock's requirements, each with its marker and its hashes."""
    return re.findall(r"^[a-z0-9].*\n(?: .*\n)*", text, re.MULTILINE)


def locked() -> dict[str, str]:
    """name==version -> its block of the locks; where both have it, the tools', which holds for more."""
    text = "".join((ROOT / "packaging" / name).read_text("utf-8") for name in LOCKS)
    return {block.split()[0]: block for block in blocks(text)}


def select(folder: Path, name: str, chosen: Callable[[str], bool]) -> Path:
    """A requirements file in the folder with the locked packages that are chosen by name==version."""
    path = folder / f"{name}.txt"
    path.write_text("".join(block for package, block in locked().items() if chosen(package)), "utf-8")
    return path


def main() -> None:
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(
            f"Python 3.{OLDEST[1]} to 3.{NEWEST[1]} is needed, this is {platform.python_version()}.\n"
            f"If one of them is installed, name it: make run PYTHON=python3.{NEWEST[1]}"
        )
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").absolute()
    if not (folder / "pyvenv.cfg").exists():
        venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    has_torch = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    index = "" if has_torch else torch_index()
    left_out = (
        "pycosat==",
        *(CUDA if has_torch or index else ()),
        *(() if platform.system() == "Linux" else ("bitsandbytes==",)),
    )
    everything = select(folder, "locked", lambda package: not package.startswith(left_out))
    must(python, *INSTALL, "--require-hashes", "-r", str(everything))
    if index:
        install_torch(python, index)
    install_pycosat(python, select(folder, "pycosat", lambda package: package.startswith("pycosat==")))
    must(python, *INSTALL, "--no-build-isolation", "-e", str(ROOT))
    (folder / ".ready").touch()
    print(f"Ready. Start the dashboard: {Path(python).parent / 'sapo-desktop'}")


if __name__ == "__main__":
    main()
