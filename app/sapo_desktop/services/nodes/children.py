"""Own verbs as processes: whoever asks for one loads no engine, and a cancel ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sapo_desktop.errors import AppError
from sapo_desktop.paths import own_command

_LINE = 4 * 1024 * 1024
"""Bytes of the longest line that is read: a result as one JSON object."""
NOT_STARTED = "A process cannot be started ({}). Was the app updated meanwhile? Leave the dashboard and open it again."
_GRACE_S = 5.0
"""Seconds in which a process that was interrupted may tidy up."""
PROGRESS = re.compile(r"(\d{1,3}) % (.*)")
"""A line of a verb that tells its progress."""


@asynccontextmanager
async def child(arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
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
        await end(await starting)


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


async def end(process: asyncio.subprocess.Process) -> None:
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


async def words(process: asyncio.subprocess.Process) -> AsyncGenerator[str, None]:
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


async def run(arguments: Sequence[str]) -> AsyncGenerator[str | bytes, None]:
    """A verb to its end: what it writes to its error stream line by line, then all of its output. Raises AppError with its own
    last words when it failed."""
    last = ""
    async with child(arguments) as process:
        async with contextlib.aclosing(words(process)) as lines:
            async for line in lines:
                last = last if PROGRESS.fullmatch(line) else line
                yield line
        assert process.stdout is not None
        written = await process.stdout.read()
        if await process.wait() != 0:
            raise AppError(last.removeprefix("sapo-desktop: ") or "It ended without a word.")
    yield written
