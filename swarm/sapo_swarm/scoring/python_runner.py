"""Runs Python that a model wrote in a separate process, which ends after each answer and can only calculate.

The scorer worker forks a starter before it denies itself processes; the starter forks a child for each answer. The child
applies the worker's limits, and tighter ones, before it reads a line of the model's code: no files but the interpreter's,
nothing written, no processes, no sockets, little memory, a deadline that the starter enforces. It is given the expressions,
never the values that they should have; whatever it answers is text, which the worker reads as literals. So code that ends the
process, patches built-ins or answers in place of the tests can only be wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from types import ModuleType

from sapo_swarm.scoring import sandbox

ANSWER_S = 0.75
"""Seconds of wall time that an answer may run with all its tests."""
MEMORY_BYTES = 256 * 2**20
"""In addition to what the starter has when it forks."""
MAX_REPLY = 64 * 2**10
_LENGTH = struct.Struct("<I")


class RunnerUnavailable(Exception):
    """Generated code cannot be contained here; the message says why."""


class PythonRunner:
    """The worker's end of the two pipes to the starter."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies

    def values(self, code: str, expressions: Sequence[str]) -> list[str]:
        """repr() of each expression after the code ran; "" for one that raised. [] if the answer as a whole failed: it took
        too long, needed too much, or ended the process. Raises RunnerUnavailable."""
        request = json.dumps([code, list(expressions)]).encode()
        try:
            with _alarm_later():
                _write(self._requests, _LENGTH.pack(len(request)) + request)
                (length,) = _LENGTH.unpack(_read(self._replies, _LENGTH.size))
                reply = _read(self._replies, length)
        except OSError as error:
            raise RunnerUnavailable(f"The process for generated Python ended ({error}).") from error
        if reply == b"unlimited":
            raise RunnerUnavailable(
                "Generated Python is only run where the kernel contains it (Linux with Landlock and seccomp)."
            )
        try:
            values = json.loads(reply)
        except (ValueError, RecursionError):
            return []
        whole = isinstance(values, list) and len(values) == len(expressions) and all(isinstance(v, str) for v in values)
        return values if whole else []


@contextlib.contextmanager
def _alarm_later() -> Iterator[None]:
    """The worker's alarm fires only once the block is done: what it left of a reply in the pipe would be taken for the next
    answer's."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


current: PythonRunner | None = None
"""The worker's runner, if its tasks need one."""


def start_python_runner(worker_pipes: Sequence[int]) -> None:
    """Fork the starter; call before the worker's limits are in force and before threads exist. worker_pipes: descriptors that
    belong to the worker alone. Does nothing if processes cannot be forked."""
    global current
    if sys.platform == "win32":
        return
    from_worker, requests = os.pipe()
    replies, to_worker = os.pipe()
    if os.fork() == 0:
        for descriptor in (*worker_pipes, requests, replies):
            os.close(descriptor)
        with contextlib.suppress(BaseException):
            _starter(from_worker, to_worker)
        os._exit(0)
    os.close(from_worker)
    os.close(to_worker)
    current = PythonRunner(requests, replies)


def _starter(requests: int, replies: int) -> None:
    """Answer requests until the worker is gone. A child's output is passed on unread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        (length,) = _LENGTH.unpack(_read(requests, _LENGTH.size))
        request = _read(requests, length)
        reply = _one(request)
        _write(replies, _LENGTH.pack(len(reply)) + reply)


def _one(request: bytes) -> bytes:
    """One answer in one child, killed at its deadline or when it says too much."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(sending, 3)
            os.closerange(4, 4096)
            _child(request)
        finally:
            os._exit(1)
    os.close(sending)
    output, due = b"", time.monotonic() + ANSWER_S
    try:
        while len(output) <= MAX_REPLY and (left := due - time.monotonic()) > 0:
            if not select.select([receiving], [], [], left)[0]:
                break
            if not (piece := os.read(receiving, 65536)):
                return output
            output += piece
        return b""
    finally:
        os.close(receiving)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _child(request: bytes) -> None:
    """Apply the limits, then run the model's code."""
    os.environ.clear()
    os.chdir("/")
    applied, _ = sandbox.apply_limits(_used() + MEMORY_BYTES)
    if not set(sandbox.PHRASES) <= set(applied):
        os.write(3, b"unlimited")
        os._exit(0)
    code, expressions = json.loads(request)
    dumps, write = json.dumps, os.write
    module = sys.modules["answer"] = ModuleType("answer")  # dataclasses look up their module
    names = vars(module)
    exec(compile(code, "answer.py", "exec", dont_inherit=True), names)  # noqa: S102  (contained: see the module's docstring)
    values = []
    for expression in expressions:
        try:
            values.append(repr(eval(expression, names))[: MAX_REPLY // 4])  # noqa: S307  (the same)
        except Exception:
            values.append("")
    write(3, dumps(values).encode()[: MAX_REPLY + 1])
    os._exit(0)


def _used() -> int:
    """Bytes of address space in use; only called on Linux."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _read(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(descriptor, length - len(data))
        if not piece:
            raise OSError("the other end is gone")
        data += piece
    return data


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
