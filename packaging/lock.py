"""Lock the application's dependencies with their hashes: python packaging/lock.py (writes packaging/requirements.lock)

One command, one index (PyPI), every platform and Python that the app supports. It needs uv (pip install uv). What is locked
stays as it is where pyproject.toml allows it; --upgrade takes the newest of everything but torch (TRIED). Install with it:

    pip install --require-hashes -r packaging/requirements.lock && pip install --no-deps WHEEL

packaging/tools.lock has what a checkout's environment holds beside that: tools of developers, the other extras, the build.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from setup_venv import blocks

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "packaging" / "requirements.lock"
EXTRAS = ("torch", "redis", "serve")
"""What an installed app may have; tools of developers are not in it."""
TOOLS = ROOT / "packaging" / "tools.lock"
TOOL_EXTRAS = ("dev", "lab", "mlx", "4bit")
BUILD = "editables"
"""What hatchling asks for to install a checkout in place."""
TRIED = "torch==2.13.0"
"""The release of torch that the tests, docs and benchmarks used; every system gets this one."""
INDEX = "https://pypi.org/simple"


def fingerprint(extras: tuple[str, ...] = EXTRAS) -> str:
    """SHA-256 over everything in pyproject.toml that decides what is locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = {name: project["optional-dependencies"][name] for name in extras}
    wanted = [project["requires-python"], project["dependencies"], optional]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def resolved(uv: str, old: Path, extras: tuple[str, ...], more: str, upgrade: list[str]) -> list[str]:
    """What these extras need. old: the lock whose versions stay. more: a requirements file beside pyproject.toml."""
    options = [
        "--universal",
        "--generate-hashes",
        "--python-version",
        "3.11",
        "--no-header",
        "--no-annotate",
        "--quiet",
    ]
    wanted = [part for name in extras for part in ("--extra", name)]
    with tempfile.TemporaryDirectory() as folder:
        made, beside = Path(folder) / LOCK.name, Path(folder) / "more.in"
        beside.write_text(more, "utf-8")
        if old.exists():
            shutil.copyfile(old, made)  # uv keeps the versions that it finds in its output file
        where = ["--index-url", INDEX, "--output-file", str(made)]
        command = [uv, "pip", "compile", "pyproject.toml", str(beside), *wanted, *options, *upgrade, *where]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return blocks(made.read_text("utf-8"))


def write(path: Path, extras: tuple[str, ...], found: list[str]) -> None:
    """The lock, with the fingerprint of what it was made from."""
    head = f"# Made by `python packaging/lock.py` from pyproject.toml {fingerprint(extras)}\n"
    path.write_text(head + "".join(found), "utf-8")
    print(f"{path.relative_to(ROOT)}: {len(found)} packages")


def main() -> None:
    parser = argparse.ArgumentParser(description="Lock the application's dependencies with their hashes.")
    parser.add_argument("--upgrade", action="store_true", help="the newest version of everything but torch")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is missing. Fix: pip install uv")
    app = resolved(uv, LOCK, EXTRAS, TRIED, upgrade)
    pinned = [BUILD, *tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]]
    pinned += [block.splitlines()[0].removesuffix(" \\") for block in app]
    everything = resolved(uv, TOOLS, (*EXTRAS, *TOOL_EXTRAS), "\n".join(pinned), upgrade)
    write(LOCK, EXTRAS, app)
    write(TOOLS, TOOL_EXTRAS, [block for block in everything if block not in app])


if __name__ == "__main__":
    main()
