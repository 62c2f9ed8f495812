"""The coordinator that this home hosts: whether it runs, starting and stopping it, and the host's own connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sapo_desktop.errors import AppError, NotRunning
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import children
from sapo_swarm.coordinator.admin_client import AdminAccess, AdminClient, read_access
from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

START_LIMIT_S = 20.0
STOP_LIMIT_S = 20.0
_POLL_S = 0.1


class HostedCoordinator(msgspec.Struct, frozen=True, kw_only=True):
    """A running coordinator, as other processes of this home find it. admin: the file with its address and admin key. born:
    when the process began, as its number may be another's by now."""

    pid: int
    name: str
    open: bool
    admin: str
    born: str

    def access(self) -> AdminAccess:
        """Raises CoordinatorError."""
        return read_access(Path(self.admin))

    def client(self) -> AdminClient:
        """The host's connection. Use with `async with`. Raises CoordinatorError."""
        return AdminClient(self.access())

    def visitor(self) -> NodeClient:
        """The public connection, without joining. Use with `async with`. Raises CoordinatorError."""
        access = self.access()
        host = access.url.rpartition(":")[0].partition("//")[2].strip("[]")
        return NodeClient(Invite(host, access.port, access.swarm, access.fingerprint), Identity.generate())


def this_process(name: str, open: bool, admin: str) -> HostedCoordinator:
    """The record that this coordinator process writes about itself."""
    return HostedCoordinator(
        pid=os.getpid(), name=name, open=open, admin=admin, born=children.process_start_stamp(os.getpid())
    )


def _file(home: Home) -> Path:
    return home.runtime / "coordinator.json"


@contextlib.contextmanager
def record_coordinator(home: Home, hosting: HostedCoordinator) -> Iterator[None]:
    """Record the coordinator that this process runs, while it runs. Raises AppError."""
    path = _file(home)
    try:
        write_atomically(path, msgspec.json.encode(hosting), synced=False)
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}).") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find_coordinator(home: Home) -> HostedCoordinator | None:
    """The coordinator of this home if its process is alive."""
    try:
        state = msgspec.json.decode(_file(home).read_bytes(), type=HostedCoordinator)
    except (OSError, *UNREADABLE):
        return None
    return (
        state
        if children.is_process_alive(state.pid) and children.process_start_stamp(state.pid) == state.born
        else None
    )


def still_open(home: Home) -> str:
    """What to say about a swarm hosted by this home when its node is gone; "" where none is hosted."""
    return (
        "The swarm that you host is still open. To close it: sapo-desktop swarm stop" if find_coordinator(home) else ""
    )


def require_coordinator(home: Home) -> HostedCoordinator:
    """The coordinator of this home. Raises NotRunning."""
    coordinator = find_coordinator(home)
    if coordinator is None:
        raise NotRunning("No swarm is hosted here. Host one: sapo-desktop coordinator")
    return coordinator


async def start_coordinator(home: Home, arguments: Sequence[str]) -> HostedCoordinator:
    """Start `sapo-desktop coordinator ARGUMENTS` detached, unless one runs, and wait until it listens. Raises AppError."""
    home.prepare()
    if (running := find_coordinator(home)) is not None:
        return running
    errors = home.logs / "coordinator.stderr"
    process = await asyncio.to_thread(children.spawn_detached, home, ["coordinator", *arguments], errors)
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if (running := find_coordinator(home)) is not None:
            return running
        if process.poll() is not None:
            raise AppError(children.last_words(errors) or f"The coordinator ended without a word. Its log: {errors}")
        await asyncio.sleep(_POLL_S)
    raise AppError(f"The coordinator did not start within {START_LIMIT_S:.0f} s. Its log: {errors}")


async def stop_coordinator(home: Home) -> HostedCoordinator:
    """Shut down the coordinator of this home. Raises NotRunning, AppError when it does not end."""
    coordinator = require_coordinator(home)
    try:
        async with coordinator.client() as host:
            await host.stop()
    except CoordinatorError:  # it does not answer: on Windows a signal ends it midway
        os.kill(coordinator.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while find_coordinator(home) is not None:
        if time.monotonic() > deadline:
            raise AppError(f"Process {coordinator.pid} still runs. End it with: kill {coordinator.pid}")
        await asyncio.sleep(_POLL_S)
    return coordinator
