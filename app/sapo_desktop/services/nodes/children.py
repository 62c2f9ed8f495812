"""Processes that this app starts: those that outlive whoever started them, and own verbs that a cancel ends at once."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home, own_command
from sapo_swarm.node.governor.sensors import PROC, read_kernel_file

# Processes that outlive whoever started them: the node and the coordinator.

_children: list[subprocess.Popen[bytes]] = []
"""Started from here: asked for their exit codes when they are gone, never waited for."""


def spawn_detached(home: Home, arguments: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
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
            **detached_popen_options(),
        )
    _children.append(process)
    return process


def detached_popen_options(platform: str = sys.platform) -> dict[str, Any]:
    """What Popen needs so that neither a terminal that closes nor its Ctrl+C reaches the process. Windows ends all programs of a
    console with it: this one gets a console of its own, without a window (CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP)."""
    return {"creationflags": 0x08000000 | 0x00000200} if platform == "win32" else {"start_new_session": True}


@atexit.register
def _forget_the_ended() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def is_process_alive(pid: int) -> bool:
    """The process runs (one that ended and that its parent has not asked for its exit code does not)."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def process_start_stamp(pid: int) -> str:
    """When the process began, as no step of the clock changes it and no later process of this number has it; "" without one.

    Linux counts from its boot (psutil makes a time of it that moves with the clock); elsewhere the system keeps the time.
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
    """What a file says of a process: its number and when it began."""
    return f"{pid} {process_start_stamp(pid)}"


def read_node_pid(path: Path) -> int | None:
    """The process id of the node of which the file has a note, while it runs.

    Older versions noted the number alone: the process of that number is taken by its command, which is empty for a moment
    after it began.
    """
    import psutil

    try:
        number, _, began = path.read_text("ascii").strip().partition(" ")
        process = psutil.Process(int(number))
        is_node = began == process_start_stamp(process.pid) if began else "node" in process.cmdline()
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


# Own verbs as processes: whoever asks for one loads no engine, and a cancel ends it at once.

_LINE = 4 * 1024 * 1024
"""Bytes of the longest line that is read: a result as one JSON object."""
NOT_STARTED = "A process cannot be started ({}). Was the app updated meanwhile? Leave the dashboard and open it again."
_GRACE_S = 5.0
"""Seconds in which a process that was interrupted may tidy up."""
PROGRESS = re.compile(r"(\d{1,3}) % (.*)")
"""A line of a verb that tells its progress."""


@asynccontextmanager
async def child_process(arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """`sapo-desktop ARGUMENTS`, interrupted when the block is left before it ended. Its three streams are pipes.

    Raises AppError where it cannot be started.
    """
    starting = asyncio.create_task(_start(arguments))
    try:
        try:
            process = await asyncio.shield(starting)
        except OSError as error:
            raise AppError(NOT_STARTED.format(error.strerror)) from error
        yield process
    finally:
        await _to_its_end(asyncio.create_task(_end_started(starting)))


async def _start(arguments: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *own_command(),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE,
        start_new_session=True,  # ctrl+c in the terminal is the dashboard's
    )


async def _end_started(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """A process that was still being started when the block was left is ended, too."""
    with contextlib.suppress(OSError):
        await terminate_process(await starting)


async def _to_its_end(ending: asyncio.Task[None]) -> None:
    """Wait for it, however often the waiting is cancelled (a screen that closes, then the application): a few seconds at most."""
    cancelled = False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def terminate_process(process: asyncio.subprocess.Process) -> None:
    """Interrupt it; kill it when it does not go. Windows has no signal that interrupts: there it ends half-way, and half
    an export goes when the next one to that place begins."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE_S):
                await _drained(process)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    await _drained(process)
    if process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(OSError):
            await process.stdin.wait_closed()


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Wait for its end; what it still says is read, so that a full pipe does not hold it."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(ValueError):
                while await stream.read(65536):
                    pass
    await process.wait()


async def stderr_lines(process: asyncio.subprocess.Process) -> AsyncGenerator[str, None]:
    """What it writes to its error stream, line by line; a carriage return ends a line too."""
    assert process.stderr is not None
    rest = ""
    while piece := await process.stderr.read(4096):
        *lines, rest = (rest + piece.decode("utf-8", "replace")).replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


async def stream_verb(arguments: Sequence[str]) -> AsyncGenerator[str | bytes, None]:
    """A verb to its end: what it writes to its error stream line by line, then all of its output. Raises AppError with its own
    last words when it failed."""
    last = ""
    async with child_process(arguments) as process:
        async with contextlib.aclosing(stderr_lines(process)) as lines:
            async for line in lines:
                last = last if PROGRESS.fullmatch(line) else line
                yield line
        assert process.stdout is not None
        written = await process.stdout.read()
        if await process.wait() != 0:
            raise AppError(last.removeprefix("sapo-desktop: ") or "It ended without a word.")
    yield written
