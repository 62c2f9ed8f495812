"""Writes a file whole or not at all, whatever ends the process meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LEFT_S = 3600.0
"""A half-written file of this age was left by a process that was killed."""


def write_atomically(path: Path, content: bytes | str, *, private: bool = False, synced: bool = True) -> None:
    """Write the file, and create its folder if missing. Text is UTF-8. For the rest see open_atomic. Raises OSError."""
    Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(path, private=private, synced=synced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def open_atomic(path: Path, *, private: bool = False, synced: bool = True) -> Iterator[IO[bytes]]:
    """A temporary file beside that name, which gets the name when the block succeeds; otherwise nothing is left of it. Two
    processes may write at once: the content of the last one stays.

    A symbolic link stays one: its target is written. private: only the owner may read it (0600). synced: it is on disk before
    it has its name; not needed for what is recreated at each start. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    for old in half_written(path):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > LEFT_S:
                old.unlink()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    handle = os.open(
        beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if synced:
                file.flush()
                on_disk(file.fileno())
        _replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _replace(new: Path, path: Path) -> None:
    """Windows refuses this while another process has the file open: there it is retried for a fifth of a second."""
    for pause in (0.02, 0.06, 0.12) if os.name == "nt" else ():
        try:
            new.replace(path)
            return
        except PermissionError:
            time.sleep(pause)
    new.replace(path)


def on_disk(handle: int) -> None:
    """Return once the written data is on the disk, not just in the drive's cache (macOS leaves it there after fsync)."""
    if os.name != "nt":
        import fcntl

        full = getattr(fcntl, "F_FULLFSYNC", None)
        with contextlib.suppress(OSError):  # a file system that cannot
            if full is not None:
                fcntl.fcntl(handle, full)
                return
    os.fsync(handle)


def half_written(path: Path) -> Iterator[Path]:
    """Temporary files of this file, from processes that were killed or are writing it now."""
    with contextlib.suppress(OSError), os.scandir(path.parent) as there:
        for entry in there:
            if entry.name.startswith(f".{path.name}.") and entry.name.endswith(".partial"):
                yield path.with_name(entry.name)
