"""Processes that this app starts: detached ones that outlive their starter, and own commands that a cancel ends at once."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sapo_backends.child_process import last_line, open_child, stderr_lines
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home, own_command
from sapo_swarm.node.governor.rules import PROC, read_kernel_file

# Detached processes: the node and the coordinator.

_children: list[subprocess.Popen[bytes]] = []
"""Started here: polled for their exit codes, never waited for."""


def spawn_detached(home: Home, arguments: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
    """`sapo-desktop ARGUMENTS` in its own session, so that closing the terminal does not end it.

    errors: the file for its error stream.
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
            **detached_popen_options(),
        )
    _children.append(process)
    return process


def detached_popen_options(platform: str = sys.platform) -> dict[str, Any]:
    """Popen arguments that keep a closing terminal and its Ctrl+C from reaching the process. Windows ends all programs of a
    console with it: this one gets its own console, without a window (CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP)."""
    return {"creationflags": 0x08000000 | 0x00000200} if platform == "win32" else {"start_new_session": True}


@atexit.register
def _forget_the_ended() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def is_process_alive(pid: int) -> bool:
    """Whether the process is running (a zombie, whose parent has not collected its exit code, is not)."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def process_start_stamp(pid: int) -> str:
    """The time at which the process began, unaffected by clock changes and different for every later process with this
    number; "" without one.

    Linux counts from boot (psutil converts that to a time, which moves with the clock); elsewhere the system stores the time.
    """
    if sys.platform == "linux":
        fields = read_kernel_file(PROC / str(pid) / "stat").rpartition(")")[2].split()
        return f"{read_kernel_file(PROC / 'sys' / 'kernel' / 'random' / 'boot_id')} {fields[19]}" if fields else ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


def format_pid_record(pid: int) -> str:
    """A process as recorded in a file: its number and start."""
    return f"{pid} {process_start_stamp(pid)}"


def read_node_pid(path: Path) -> int | None:
    """The process id of the node recorded in the file, while it runs."""
    import psutil

    try:
        number, _, began = path.read_text("ascii").strip().partition(" ")
        process = psutil.Process(int(number))
        is_node = began == process_start_stamp(process.pid)
        return process.pid if is_node and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, psutil.Error):
        return None


def last_words(errors: Path, since: float = 0.0) -> str:
    """The last line of an error stream; "" when there is none, or none since that time."""
    try:
        return last_line(errors.read_text("utf-8", "replace")) if errors.stat().st_mtime >= since else ""
    except OSError:
        return ""


# Own commands as processes: the caller loads no engine, and a cancel ends them at once.

NOT_STARTED = "A process cannot be started ({}). Was the app updated meanwhile? Leave the dashboard and open it again."
PROGRESS = re.compile(r"(\d{1,3}) % (.*)")
"""A line in which a command reports its progress."""


@asynccontextmanager
async def verb_process(arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """`sapo-desktop ARGUMENTS`, interrupted when the block is left before it ended. Raises AppError where it cannot be
    started."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            process = await stack.enter_async_context(open_child([*own_command(), *arguments]))
        except OSError as error:
            raise AppError(NOT_STARTED.format(error.strerror)) from error
        yield process


async def stream_verb(arguments: Sequence[str]) -> AsyncGenerator[str | bytes, None]:
    """Run a command to its end: yields the lines of its error stream, then all of its output. Raises AppError with its last
    error line when it failed."""
    last = ""
    async with verb_process(arguments) as process:
        async with contextlib.aclosing(stderr_lines(process)) as lines:
            async for line in lines:
                last = last if PROGRESS.fullmatch(line) else line
                yield line
        assert process.stdout is not None
        output = await process.stdout.read()
        if await process.wait() != 0:
            raise AppError(last_line(last) or "It ended without a word.")
    yield output
