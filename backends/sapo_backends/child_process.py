"""Work in a process of its own: how it is started, gets its job, answers in lines, is stopped, and what it said last.

A library that crashes, takes all memory or prints to the terminal must not do so here. `ChildProcess` blocks: the export,
the probe, the reader of foreign files and llama.cpp's first decode use it. `open_child` is for an event loop: the
dashboard's verbs, its chat and its measurements. `AnswerStream` is the child's side. The scorer's worker stays apart
(sapo_swarm.scoring.scorer): it lives as long as the node and is never trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import IO

PRIVATE = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""The variables that a private child gets: none of the person's secrets."""
LOOK_S = 0.2
"""Seconds between two looks of a parent that waits."""
GRACE_S = 5.0
"""Seconds that an interrupted process has to clean up."""
LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of the longest line that `open_child` reads: a result as one JSON object."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours; nothing is imported from the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment(more: Mapping[str, str] | None = None, private: bool = False) -> dict[str, str]:
    """This process's variables (private: only harmless ones) with its import path, and more."""
    passed = {name: os.environ[name] for name in PRIVATE if name in os.environ} if private else dict(os.environ)
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}


def last_line(text: str) -> str:
    """The last line of what a process wrote to its error stream, as a sentence; "" if it wrote nothing."""
    lines = text.strip().splitlines()
    return lines[-1].strip().removeprefix("sapo-desktop: ") if lines else ""


def describe_end(code: int) -> str:
    """How a process ended: "signal 9", "code 1"."""
    return f"signal {-code}" if code < 0 else f"code {code}"


class ChildProcess:
    """One child; use `with`: leaving the block kills it if it still runs. Its error stream goes to a file, so that it never
    blocks on it. Raises OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], job: bytes = b"") -> None:
        """job: what it reads on standard input; nothing: that is empty."""
        self._command, self._environment, self._job = command, environment, job

    def __enter__(self) -> ChildProcess:
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._job else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=self._environment,
            )
        except OSError:
            self._errors.close()
            raise
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its last words are reported
                self._process.stdin.write(self._job)
                self._process.stdin.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def lines(self) -> Iterator[bytes]:
        """The lines of its output as they come, until it ends."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def ends_within(self, seconds: float, look: Callable[[], None] | None = None) -> bool:
        """Whether it ends by itself in time; for a child that writes less than a pipe holds. look: called repeatedly; what it
        raises is passed on."""
        end = time.monotonic() + seconds
        while True:
            if look is not None:
                look()
            left = end - time.monotonic()
            try:
                self._process.wait(max(0.0, left if look is None else min(left, LOOK_S)))
                return True
            except subprocess.TimeoutExpired:
                if left <= LOOK_S:
                    return False

    @property
    def code(self) -> int:
        """Its exit code; negative: the signal that ended it. Waits for its end."""
        return self._process.wait()

    def read_output(self, most: int = -1) -> bytes:
        """The rest of its output, at most `most` bytes."""
        assert self._process.stdout is not None
        return self._process.stdout.read(most)

    def read_errors(self, most: int = -1) -> str:
        """Its error stream from the start, at most `most` bytes."""
        self._errors.seek(0)
        return self._errors.read(most).decode("utf-8", "replace")


def limit_this_process(memory: int, seconds: int, file_bytes: int) -> None:
    """The child's side: bytes of its address space, seconds of processor time, bytes of a file that it writes. Limits what
    the platform can limit: macOS has no working RLIMIT_AS, Windows has none."""
    try:
        import resource
    except ImportError:
        return
    limits = (("RLIMIT_AS", memory), ("RLIMIT_CPU", seconds), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", file_bytes))
    for name, value in limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource_id = getattr(resource, name)
            hard = resource.getrlimit(resource_id)[1]
            ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(resource_id, (ceiling, ceiling))


class AnswerStream:
    """The child's side: the original standard output, for answers alone. Whatever else prints goes to standard error."""

    def __init__(self) -> None:
        """Take over standard output."""
        self._stream = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def send_line(self, line: bytes) -> None:
        """Send one line. Raises BrokenPipeError when the parent is gone."""
        self._stream.write(line + b"\n")


@asynccontextmanager
async def open_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None, grace_s: float = GRACE_S
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child whose three streams are pipes; interrupted when the block is left before it ended, and killed grace_s later (0:
    killed at once). Raises OSError where it cannot be started."""
    starting = asyncio.create_task(_start(command, environment))
    try:
        yield await asyncio.shield(starting)
    finally:
        await _to_its_end(asyncio.create_task(_end_started(starting, grace_s)))


async def _start(command: Sequence[str], environment: Mapping[str, str] | None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        limit=LONGEST_LINE,
        start_new_session=True,  # ctrl+c in the terminal belongs to the parent
    )


async def _end_started(starting: asyncio.Task[asyncio.subprocess.Process], grace_s: float) -> None:
    """Also end a process that was still being started when the block was left."""
    with contextlib.suppress(OSError):
        await _terminate(await starting, grace_s)


async def _to_its_end(ending: asyncio.Task[None]) -> None:
    """Wait for the task, however often the waiting is cancelled (by a screen that closes, then by the application): a few
    seconds at most."""
    cancelled = False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _terminate(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """Interrupt it; kill it when it does not end. Windows has no interrupt signal: there it ends midway, and a half-written
    export is removed when the next one to the same place begins."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
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
    """Wait for its end while reading its output, so that a full pipe does not block it."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(ValueError):
                while await stream.read(65536):
                    pass
    await process.wait()


async def stderr_lines(process: asyncio.subprocess.Process) -> AsyncGenerator[str, None]:
    """Lines of its error stream; a carriage return ends a line too."""
    assert process.stderr is not None
    rest = ""
    while piece := await process.stderr.read(4096):
        *lines, rest = (rest + piece.decode("utf-8", "replace")).replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()
