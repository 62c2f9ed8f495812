"""Lock the application's dependencies with their hashes: python packaging/lock.py (writes packaging/requirements.lock)

One command, one index (PyPI), every platform and Python that the app supports. It needs uv (pip install uv). What is locked
stays as it is where pyproject.toml allows it; --upgrade takes the newest of everything. Install with it:

    pip install --require-hashes -r packaging/requirements.lock && pip install --no-deps WHEEL
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

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "packaging" / "requirements.lock"
EXTRAS = ("torch", "redis", "serve", "lan")
"""What an installed app may have; tools of developers are not in it."""
INDEX = "https://pypi.org/simple"


def fingerprint() -> str:
    """SHA-256 over everything in pyproject.toml that decides what is locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = {name: project["optional-dependencies"][name] for name in EXTRAS}
    wanted = [project["requires-python"], project["dependencies"], optional]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Lock the application's dependencies with their hashes.")
    parser.add_argument("--upgrade", action="store_true", help="the newest version of everything")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is missing. Fix: pip install uv")
    extras = [part for name in EXTRAS for part in ("--extra", name)]
    options = [
        "--universal",
        "--generate-hashes",
        "--python-version",
        "3.11",
        "--no-header",
        "--no-annotate",
        "--quiet",
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / LOCK.name  # uv keeps the versions that it finds in its output file
        if LOCK.exists():
            shutil.copyfile(LOCK, made)
        where = ["--index-url", INDEX, "--output-file", str(made)]
        command = [uv, "pip", "compile", "pyproject.toml", *extras, *options, *upgrade, *where]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        locked = made.read_text("utf-8")
    head = f"# Made by `python packaging/lock.py` from pyproject.toml {fingerprint()}\n"
    LOCK.write_text(head + locked, "utf-8")
    print(f"{LOCK.relative_to(ROOT)}: {locked.count('==')} packages")


if __name__ == "__main__":
    main()
