"""Processes that outlive whoever started them: the node and the coordinator."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sapo_desktop.paths import Home, own_command
from sapo_swarm.node.governor.sensors import PROC, word

_children: list[subprocess.Popen[bytes]] = []
"""Started from here: asked for their exit codes when they are gone, never waited for."""


def spawn(home: Home, arguments: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
    """`sapo-desktop ARGUMENTS` in a session of its own, so that closing the terminal does not end it.

    errors: where its error stream goes.
    """
    _forget_the_ended()
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*own_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=home.data,
            env=dict(os.environ),
            **detached(),
        )
    _children.append(process)
    return process


def detached(platform: str = sys.platform) -> dict[str, Any]:
    """What Popen needs so that neither a terminal that closes nor its Ctrl+C reaches the process. Windows ends all programs of a
    console with it: this one gets a console of its own, without a window (CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP)."""
    return {"creationflags": 0x08000000 | 0x00000200} if platform == "win32" else {"start_new_session": True}


@atexit.register
def _forget_the_ended() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def alive(pid: int) -> bool:
    """The process runs (one that ended and that its parent has not asked for its exit code does not)."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def born(pid: int) -> str:
    """When the process began, as no step of the clock changes it and no later process of this number has it; "" without one.

    Linux counts from its boot (psutil makes a time of it that moves with the clock); elsewhere the system keeps the time.
    """
    if sys.platform == "linux":
        fields = word(PROC / str(pid) / "stat").rpartition(")")[2].split()
        return f"{word(PROC / 'sys' / 'kernel' / 'random' / 'boot_id')} {fields[19]}" if fields else ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


def note(pid: int) -> str:
    """What a file says of a process: its number and when it began."""
    return f"{pid} {born(pid)}"


def noted(path: Path) -> int | None:
    """The process id of the node of which the file has a note, while it runs.

    Older versions noted the number alone: the process of that number is taken by its command, which is empty for a moment
    after it began.
    """
    import psutil

    try:
        number, _, began = path.read_text("ascii").strip().partition(" ")
        process = psutil.Process(int(number))
        is_node = began == born(process.pid) if began else "node" in process.cmdline()
        return process.pid if is_node and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, psutil.Error):
        return None


def last_words(errors: Path, since: float = 0.0) -> str:
    """The last line of an error stream; "" when there was nothing to say, or nothing since that time."""
    try:
        lines = errors.read_text("utf-8", "replace").strip().splitlines() if errors.stat().st_mtime >= since else []
    except OSError:
        return ""
    return lines[-1].removeprefix("sapo-desktop: ") if lines else ""
