"""What the scorer worker denies itself, as far as the platform can. Defence in depth, not a sandbox."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sapo_backends.errors import size_text
from sapo_swarm.scoring import kernel_limits

MEMORY_BYTES = 1536 * 2**20
OPEN_FILES = 64
_FORBIDDEN = frozenset(
    {
        "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.kill",
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown",
        "os.truncate", "os.putenv", "subprocess.Popen", "pty.spawn", "shutil.rmtree", "socket.__new__",
        "socket.connect", "socket.bind", "ctypes.dlopen", "webbrowser.open",
    }
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _deny(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = isinstance(flags, int) and flags & _WRITING
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            raise PermissionError("The scorer worker writes no files.")
    elif event in _FORBIDDEN:
        raise PermissionError(f"The scorer worker does not call {event}.")


def apply(memory_bytes: int = MEMORY_BYTES, readable: Sequence[Path] = ()) -> tuple[list[str], list[str]]:
    """Put every limit in force that this platform has: (in force, missing), as phrases for `doctor`. Irreversible.

    readable: folders beside the program's own files.
    """
    applied: list[str] = []
    missing: list[str] = []
    for phrase, name, value in (
        (f"memory {size_text(memory_bytes)}", "RLIMIT_AS", memory_bytes),
        ("no file contents written", "RLIMIT_FSIZE", 0),
        (f"{OPEN_FILES} open files", "RLIMIT_NOFILE", OPEN_FILES),
        ("no core dumps", "RLIMIT_CORE", 0),
    ):
        (applied if _limit(name, value) else missing).append(phrase)
    kernel, absent = kernel_limits.apply(readable)
    applied, missing = applied + kernel, missing + absent
    sys.addaudithook(_deny)
    applied.append("no writing, processes or sockets from Python")
    return applied, missing


def _limit(name: str, value: int) -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    try:
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (ceiling, ceiling))
    except (AttributeError, OSError, ValueError):  # macOS has no working RLIMIT_AS
        return False
    return True
