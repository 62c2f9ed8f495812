"""The C files here as this machine's own code: compiled once into the cache folder, where there is a C compiler.

A package for every platform would carry code for an average processor; the machine that runs it knows better.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sapo_backends.cache_folder import cache_folder
from sapo_backends.common import hardware

FOLDER = Path(__file__).parent
_TARGETS = ("-march=native", "-mcpu=native")
_OPTIMISED = "-O3"
_TIMEOUT_S = 60.0


def is_there() -> bool:
    """Whether nothing is left to do: no compiler, or compiled already."""
    try:
        return _plan()[0].exists()
    except (OSError, subprocess.SubprocessError):
        return True


def compiled() -> Path:
    """The library for this processor, compiled if it is not there yet, which takes seconds. Raises OSError,
    SubprocessError."""
    path, command = _plan()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as made:
            fresh = Path(made) / path.name
            _build(command, Path(made), fresh)
            fresh.replace(path)
    return path


def _build(command: Sequence[str], folder: Path, result: Path) -> None:
    """Compile the files at the same time and link them. Raises OSError, SubprocessError."""
    files = sorted(FOLDER.glob("*.c"))
    objects = [folder / f"{file.stem}.o" for file in files]

    def compiled_object(file: Path, to: Path) -> None:
        _run(*command, "-c", "-o", str(to), str(file))

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled_object, files, objects))
    _run(*command, "-o", str(result), *map(str, objects), "-lm")


def _plan() -> tuple[Path, list[str]]:
    """Where the library lies, and what makes it but for its files. Raises OSError, SubprocessError."""
    program = hardware.c_compiler()
    if program is None:
        raise FileNotFoundError("no C compiler")
    source = b"".join(file.read_bytes() for file in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]))
    problem = subprocess.SubprocessError()
    for target in _TARGETS:
        try:
            # What the compiler takes this processor for is part of the name: folders are shared between machines.
            known = _run(program, target, "-dM", "-E", "-x", "c", os.devnull)
        except subprocess.SubprocessError as error:
            problem = error
            continue
        name = f"kernels-{hashlib.sha256(source + known).hexdigest()[:16]}.so"
        return cache_folder() / "native" / name, [program, _OPTIMISED, target, "-shared", "-fPIC"]
    raise problem


def _run(*command: str) -> bytes:
    """Its output. Raises SubprocessError when it fails or takes too long."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout
