"""The one node of a home: its lock, starting it in the background, and sending it commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import children
from sapo_swarm.node.control_api import ControlClient, NodeError, NodeNotAnswering, NodeNotRunning, NodeStatus

# One node per home: a lock that the operating system releases when its holder dies, for whatever reason.

NODE_RUNS = (
    "A node is already running here (process {holder}). Watch it with sapo-desktop, "
    "stop it with sapo-desktop stop, or set SAPO_HOME to run another."
)


class NodeLock:
    """Held while a node (or a lab run) lives. Use with `with`; raises AppError, worded by `busy`, when another process holds
    it. names_node: the holder is a node, or ends soon: others wait for that process to answer."""

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
            file.write(children.format_pid_record(os.getpid()))
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def _holder(file: IO[str]) -> str:
    """The process id in the file; "?" where it cannot be read."""
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


# Starting a node in the background and knowing whether one is there. The node outlives its starter.

START_LIMIT_S = 180.0
"""Seconds: a busy machine may take long to start a process; one that exits instead is reported at once."""
STOP_LIMIT_S = 30.0
_POLL_S = 0.1
_AT_REST = ("paused", "stopped", "failed")


async def query_status(home: Home) -> NodeStatus | None:
    """The status of the home's node, or None. A stale socket is not a node. Raises NodeNotAnswering."""
    if not home.socket.exists():
        return None
    try:
        async with ControlClient(home.socket) as node:
            return await node.status()
    except NodeNotAnswering:
        raise
    except NodeNotRunning:
        return None


async def wait_for_status(home: Home) -> NodeStatus | None:
    """The status of the home's node; waits for one that is being started. None without a node, or when that one ended.

    Raises NodeNotAnswering, AppError when it takes too long.
    """
    status = await query_status(home)
    if status is None and (pid := await asyncio.to_thread(starting_pid, home)) is not None:
        status = await _answering(home, pid)
    return status


async def launch_node(home: Home, arguments: Sequence[str]) -> NodeStatus:
    """Start `sapo-desktop node ARGUMENTS` detached and wait until it answers (the model loads later).

    Raises AppError with the node's last error line when it exits instead.
    """
    home.prepare()
    process = await asyncio.to_thread(_spawn, home, arguments)
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if (status := await _answer(home)) is not None:
            return status
        if process.poll() is not None:
            raise AppError(last_words(home) or f"The node ended without a word. Its log: {home.node_log}")
        await asyncio.sleep(_POLL_S)
    raise AppError(
        f"The node (process {process.pid}) has not answered for {START_LIMIT_S:.0f} s. It is still starting: wait for it "
        f"with sapo-desktop status, or end it with kill {process.pid}. Its log: {home.node_log}"
    )


def _spawn(home: Home, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the process and record it in one thread call, which completes even if the caller is cancelled."""
    process = children.spawn_detached(home, ["node", "--quiet", *arguments], _errors(home))
    _starting_file(home).write_text(children.format_pid_record(process.pid), "ascii")
    return process


async def _answer(home: Home) -> NodeStatus | None:
    """The status of a node that is being started, None while it does not listen or is too busy to answer."""
    try:
        return await query_status(home)
    except NodeNotAnswering:
        return None


async def shut_down_node(home: Home) -> NodeStatus | None:
    """Stop the home's node and make sure that its process, and so its memory, is gone; returns its last status, None without
    a node.

    A node that is just being started is waited for and stopped. Raises AppError when it does not end, NodeNotAnswering when
    it is there and does not answer.
    """
    status = await wait_for_status(home)
    if status is None:
        return None
    async with ControlClient(home.socket) as node:
        await node.post("stop")
    deadline = time.monotonic() + STOP_LIMIT_S
    while children.is_process_alive(status.pid):
        if time.monotonic() > deadline:
            raise AppError(
                f"Process {status.pid} still runs after {STOP_LIMIT_S:.0f} s. End it with: kill {status.pid}"
            )
        await asyncio.sleep(0.05)
    return status


async def _answering(home: Home, pid: int) -> NodeStatus | None:
    """The status of a node that is being started, once it answers; None when its process ended instead."""
    deadline = time.monotonic() + START_LIMIT_S
    while await asyncio.to_thread(children.is_process_alive, pid):
        if (status := await query_status(home)) is not None:
            return status
        if time.monotonic() > deadline:
            raise AppError(f"Process {pid} is starting a node and did not answer. End it with: kill {pid}")
        await asyncio.sleep(_POLL_S)
    return None


def starting_pid(home: Home) -> int | None:
    """The process id of a node that was started and does not answer yet, whoever started it."""
    notes = map(children.read_node_pid, (_starting_file(home), home.lock))
    return next((pid for pid in notes if pid is not None), None)


def _starting_file(home: Home) -> Path:
    """The file that records the node last started in the background; the node takes its lock only a second later."""
    return home.runtime / "node.starting"


async def relaunch_node(home: Home, arguments: Sequence[str] = ()) -> NodeStatus:
    """Let the node finish its round, stop it, and start `sapo-desktop node ARGUMENTS`. Without a node one is started.

    Cancelled before the round is done, the node continues as it was; cancelled later, the new one is started all the same.
    Raises AppError.
    """
    if await query_status(home) is not None:
        async with ControlClient(home.socket) as node:
            await _finish_round(node)
    return await asyncio.shield(_start_anew(home, arguments))


async def _start_anew(home: Home, arguments: Sequence[str]) -> NodeStatus:
    await shut_down_node(home)
    return await launch_node(home, arguments)


async def _finish_round(node: ControlClient) -> None:
    status = await node.status()
    finishing = status.state == "finishing"
    try:
        if status.state not in _AT_REST:
            await node.post("finish")
        while status.state not in _AT_REST:
            await asyncio.sleep(_POLL_S)
            status = await node.status()
    except asyncio.CancelledError:
        if not finishing:
            with contextlib.suppress(NodeError):  # a node that has ended meanwhile has nothing to continue
                await node.post("resume")
        raise


def last_words(home: Home, pid: int = 0, since: float = 0.0) -> str:
    """The last line that a node started from here wrote to its error stream since that time; "" when there is none, or while
    its process runs: then it is some library's remark."""
    return "" if pid and children.is_process_alive(pid) else children.last_words(_errors(home), since)


def _errors(home: Home) -> Path:
    return home.logs / "node.stderr"


# Sending a node a command, and waiting until it takes effect: what is printed afterwards is true.

SETTLE_S = 20.0
"""Seconds: a node that has not reached the requested state by then is reported as it is, with what is pending."""
_CONTROL_POLL_S = 0.05
_FLOORS = ("memory", "disk")
"""Holds that "run anyway" does not override."""
_UNTIL_RESUMED = ("person", "snooze", "held", "failure", "done")


async def send_command(home: Home, verb: str, for_s: float = 0.0, holder: int = 0) -> NodeStatus:
    """Send the command (pause, resume, snooze, ...) and return the status once the node is in the requested state. holder: of
    a hold.

    `finish` returns at once: the status says what is pending. A node that is still loading its model keeps the command for
    later, and its status says so. Raises NodeNotRunning, NodeNotAnswering, ControlError.
    """
    async with ControlClient(home.socket) as node:
        body = {"for_s": for_s, "holder": holder}
        status = await node.post(verb, **{name: value for name, value in body.items() if value})
        deadline = time.monotonic() + SETTLE_S
        while not command_settled(verb, status) and time.monotonic() < deadline:
            await asyncio.sleep(_CONTROL_POLL_S)
            status = await node.status()
        return status


def command_settled(verb: str, status: NodeStatus) -> bool:
    """Whether the node is in the state that the command requests, or one that the command cannot change."""
    if status.state in ("starting", "stopped", "failed"):
        return True
    if verb == "hold":
        return status.state == "paused"
    if verb in ("pause", "snooze"):
        return status.state == "paused" and status.reason in ("person", "snooze")
    if verb == "resume":
        stays_paused = status.state == "paused" and status.reason not in _UNTIL_RESUMED
        return stays_paused or status.state in ("running", "finishing")
    if verb == "run_anyway":
        return status.state in ("running", "finishing") or status.reason in _FLOORS
    return True
