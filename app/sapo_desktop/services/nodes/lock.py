"""One node per home: a lock that the operating system drops when its holder dies, however it dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from sapo_desktop.errors import AppError
from sapo_desktop.services.nodes import background

NODE_RUNS = (
    "A node is already running here (process {holder}). Watch it with sapo-desktop, "
    "stop it with sapo-desktop stop, or set SAPO_HOME to run another."
)


class NodeLock:
    """Held for as long as a node (or a run of the lab) lives. Use with `with`; raises AppError, in the words of `busy`,
    when another process holds it. names_node: what holds it is a node, or ends soon: others wait for that process to answer."""

    def __init__(self, path: Path, busy: str = NODE_RUNS, names_node: bool = True) -> None:
        self._path, self._busy, self._names_node = path, busy, names_node
        self._file: IO[str] | None = None

    def __enter__(self) -> NodeLock:
        file = self._path.open("a+")
        try:
            _lock(file)
        except OSError:
            holder = _holder(file)
            file.close()
            raise AppError(self._busy.format(holder=holder)) from None
        file.seek(0)
        file.truncate()
        if self._names_node:
            file.write(background.note(os.getpid()))
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def _holder(file: IO[str]) -> str:
    """The process id in it; "?" where it cannot be read."""
    try:
        file.seek(0)
        return file.read().strip().partition(" ")[0] or "?"
    except (OSError, ValueError):
        return "?"


if sys.platform == "win32":
    import msvcrt

    _BEHIND = 2**20
    """Of the file's text: what is locked there cannot be read by others."""

    def _lock(file: IO[str]) -> None:
        os.lseek(file.fileno(), _BEHIND, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
