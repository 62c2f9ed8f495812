"""The node's local control API: its messages, its client, and how they travel. Light: imports neither engines nor tasks."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

import msgspec

from sapo_swarm.config import RunConfig, settings_of_today
from sapo_swarm.errors import SwarmError
from sapo_swarm.events import Event, PhaseName, State, decode_event
from sapo_swarm.node.training_count import TrainingCount
from sapo_swarm.types import UNREADABLE

# How the control API travels: a Unix socket, or loopback TCP with a token if there are none (Windows).
#
# Both use the same path. If there is a socket, clients talk to it directly; if there is a file (mode 0600), it holds
# the port and the token for this run of the node. SAPO_CONTROL=tcp or unix chooses for the server; clients look at what
# is there.

Kind = Literal["unix", "tcp"]
LOOPBACK = "127.0.0.1"
_LIMIT = 1024
"""Maximum bytes of a token file."""


class ControlEndpoint(msgspec.Struct, frozen=True):
    """The token file: where the node listens, and the token that a client must show."""

    port: int
    token: str


def transport_kind() -> Kind:
    """What a node here listens on. Raises OSError if that is not possible."""
    choice = os.environ.get("SAPO_CONTROL", "").strip().lower()
    if choice not in ("", "unix", "tcp"):
        raise OSError(f"SAPO_CONTROL is {choice!r}. Set it to unix or tcp, or not at all.")
    sockets = hasattr(socket, "AF_UNIX") and sys.platform != "win32"
    if choice == "unix" and not sockets:
        raise OSError("This system has no Unix sockets for Python. Set SAPO_CONTROL to tcp, or not at all.")
    return "tcp" if choice == "tcp" or not sockets else "unix"


async def open_node_session(path: Path, limits: Any) -> Any:
    """An aiohttp session with the node at that path; a missing Unix socket is noticed only with the first request.

    limits: aiohttp.ClientTimeout. Raises ConnectionRefusedError if only a token file could name the node and there is
    none.
    """
    import aiohttp  # 200 ms: only when talking to a node

    place = await asyncio.to_thread(_place, path)
    if place is None:
        if not hasattr(socket, "AF_UNIX"):  # over TCP the name below would be looked up, for others to see
            raise ConnectionRefusedError(f"No node is named at {path}.")
        connector = aiohttp.UnixConnector(path=str(path), limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=limits, base_url="http://node")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=limits,
        base_url=f"http://{LOOPBACK}:{place.port}",
        headers={"Authorization": f"Bearer {place.token}"},
        trust_env=False,
    )


def _place(path: Path) -> ControlEndpoint | None:
    """The contents of a token file; None if there is a socket, or nothing readable."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            endpoint = msgspec.json.decode(file.read(_LIMIT), type=ControlEndpoint)
    except (OSError, *UNREADABLE):
        return None
    return endpoint if 0 < endpoint.port < 1 << 16 else None


# The node's local control API: its messages and its client. Light: imports neither engines nor tasks.
#
# HTTP over a Unix socket in the runtime directory (0700, owner checked); on Windows loopback TCP with a token file (transport).
#
# ==========================  =====================================================================================
# GET  /v1/status             NodeStatus
# GET  /v1/config             RunConfig of the open run
# GET  /v1/events             newline-delimited JSON events. Query: after=SEQ (stored events with seq > SEQ),
#                             kinds=round,evaluation (only these), tail=N (only the last N stored ones that match),
#                             follow=1 (then live events, ephemeral ones too, until either side closes)
# POST /v1/pause              {"for_s": 3600} or {} until resumed; takes effect within a second
# POST /v1/resume             {}
# POST /v1/finish             finish the round, then pause
# POST /v1/snooze             {"for_s": 900} pause, then go on by itself
# POST /v1/hold               pause for a chat or a measurement: what else was asked for stays asked for
# POST /v1/renew              the chat or the measurement goes on: one that says nothing is taken as over
# POST /v1/release            the chat or the measurement is over
# POST /v1/run_anyway         {"for_s": 3600} ignore the automatic rules (battery, heat) for so long
# POST /v1/obey               the automatic rules hold again
# POST /v1/evaluate           {"items": 32} a held-out evaluation after this round
# POST /v1/external_on        take groups of others into training (after the held-out tripwire stopped them)
# POST /v1/external_off       take none
# POST /v1/rollback           {"round": 12} the weights after so many rounds (a kept checkpoint) take the place of the present
#                             ones; answers when that is done
# POST /v1/stop               finish nothing, save, exit
# ==========================  =====================================================================================
#
# Every POST answers NodeStatus. Errors are RFC 9457 problem details.


class NodeError(SwarmError):
    """Base of the errors in talking to a node; the message says what failed and what to do."""


class NodeNotRunning(NodeError):
    """Nothing answers on the control socket."""

    exit_code: ClassVar[int] = 3


class NodeNotAnswering(NodeNotRunning):
    """A node's process exists but does not answer. pid: 0 if unknown. silent_s: seconds since its last sign of life.
    halted: by a signal (SIGSTOP, ctrl+z), not merely busy."""

    def __init__(self, pid: int, silent_s: float) -> None:
        self.pid, self.silent_s, self.halted = pid, silent_s, _halted(pid)
        way_out = "try again"
        if self.halted:
            way_out = f"it was halted, kill -CONT {pid} wakes it"
        elif pid:
            way_out = f"this machine is busy? kill -9 {pid} ends it, finished rounds are safe"
        super().__init__(f"The node is not answering for {silent_s:.0f} s: {way_out}")


def _halted(pid: int) -> bool:
    import psutil  # 30 ms that a dashboard's first frame does not wait for

    try:
        return bool(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


class ControlError(NodeError):
    """The node refused; the message says why."""


class NodeUnreadable(NodeError):
    """The node is of another version, and its answer cannot be read."""

    def __init__(self) -> None:
        super().__init__("The node speaks another version: restart it, or update sapo-desktop")


NO_NODE = "No node is running. Start one: sapo-desktop node"
ANSWER_S = 8.0
"""A node that takes longer to answer counts as not answering."""
GO_BACK_S = 600.0
"""Going back to a checkpoint waits for an update to end and writes up to two checkpoints."""
BEAT_S = 1.0


class NodeStatus(msgspec.Struct, frozen=True):
    """What the node does now. since: Unix time of the last state change; eta_s: -1 unknown; seq: newest stored.

    external: why no external groups are taken, "" if they are taken or there are none. name: of the model. disk: bytes of its
    folder when last measured; disk_budget: its limit, 0 = none. round, rounds_planned: running numbers of the journal; trained:
    what people read, None from older versions.
    """

    state: State
    sentence: str
    reason: str
    since: float
    pid: int
    run_id: str
    folder: str
    mode: str
    model: str
    backend: str
    device: str
    round: int
    rounds_planned: int
    phase: PhaseName | None
    phase_fraction: float
    eta_s: float
    seq: int
    started: float
    version: str
    external: str = ""
    name: str = ""
    disk: int = 0
    disk_budget: int = 0
    trained: TrainingCount | None = None


class ProblemDetails(msgspec.Struct, frozen=True):
    """An error as RFC 9457 writes it."""

    title: str = ""
    detail: str = ""
    code: str = ""
    status: int = 0


class ControlClient:
    """A client of one node. Use as `async with ControlClient(socket) as node: ...`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: Any = None
        self._asked = time.time()

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._forget()

    async def _connected(self) -> Any:
        """A session with the node that runs now: it may listen elsewhere than its predecessor."""
        import aiohttp  # 200 ms: only when talking to a node

        if self._session is None:
            session = await open_node_session(self.socket, aiohttp.ClientTimeout(total=None, sock_connect=5))
            if self._session is None:
                self._session = session
            else:  # another call was quicker
                await session.close()
        return self._session

    async def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def status(self) -> NodeStatus:
        """Raises NodeError."""
        return _understood(await self._call("GET", "/v1/status"))

    async def config(self) -> RunConfig:
        """The settings that the node works with; an older node's under today's names. Raises NodeError."""
        content = await self._call("GET", "/v1/config")
        try:
            return msgspec.convert(settings_of_today(msgspec.json.decode(content, type=dict[str, Any])), RunConfig)
        except UNREADABLE as error:
            raise NodeUnreadable from error

    async def post(self, verb: str, **body: float) -> NodeStatus:
        """verb: one of governor.run_control.VERBS, evaluate, external_on, external_off or rollback.

        Raises NodeError.
        """
        wait_s = GO_BACK_S if verb == "rollback" else None
        return _understood(await self._call("POST", f"/v1/{verb}", body, wait_s))

    async def events(
        self,
        after: int = 0,
        kinds: Iterable[str] = (),
        tail: int = 0,
        follow: bool = True,
        silence_s: float | None = None,
    ) -> AsyncIterator[Event]:
        """Stored events after a sequence number, then (follow) live ones until the node goes away.

        silence_s: raise NodeNotAnswering after this many seconds without any event; a node that is asked for all kinds
        reports its machine once a second. Raises NodeError.
        """
        import aiohttp

        query = {"after": str(after), "follow": str(int(follow))}
        if kinds:
            query["kinds"] = ",".join(kinds)
        if tail:
            query["tail"] = str(tail)
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence_s)
            session = await self._connected()
            async with session.get("/v1/events", params=query, timeout=timeout) as reply:
                if reply.status != 200:
                    raise await self._refused(reply.status, await reply.read())
                buffer = b""
                async for chunk in reply.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield decode_event(line)
        except UNREADABLE as error:
            raise NodeUnreadable from error
        except TimeoutError as error:
            raise self._silent() from error
        except (aiohttp.ClientError, OSError) as error:
            await self._forget()
            raise NodeNotRunning(f"The node went away ({type(error).__name__}).") from error

    async def _call(
        self, method: str, path: str, body: dict[str, float] | None = None, wait_s: float | None = None
    ) -> bytes:
        if self._session is None and not await asyncio.to_thread(self.socket.exists):
            raise NodeNotRunning(NO_NODE)
        import aiohttp  # as long as it takes, it would say the same

        timeout = aiohttp.ClientTimeout(total=wait_s or ANSWER_S)
        self._asked = time.time()
        try:
            session = await self._connected()
            async with session.request(method, path, json=body, timeout=timeout) as reply:
                content: bytes = await reply.read()
                if reply.status != 200:
                    raise await self._refused(reply.status, content)
                return content
        except TimeoutError as error:
            raise self._silent() from error
        except (aiohttp.ClientError, OSError) as error:
            await self._forget()
            raise NodeNotRunning(NO_NODE) from error

    async def _refused(self, status: int, content: bytes) -> Exception:
        """401: another node than the one that wrote the token file answers at its port."""
        if status != 401:
            return ControlError(_problem(content))
        await self._forget()
        return NodeNotRunning(NO_NODE)

    def _silent(self) -> NodeNotAnswering:
        """How long the node has been silent: since its last sign of life, or else since the request."""
        beat = heartbeat_path(self.socket)
        try:
            pid, seen = int(beat.read_text("ascii")), beat.stat().st_mtime
        except (OSError, ValueError):
            pid, seen = 0, self._asked
        return NodeNotAnswering(pid, max(0.0, time.time() - seen))


def heartbeat_path(socket: Path) -> Path:
    """The file beside a control socket that its node touches every second; it holds the process id."""
    return socket.with_suffix(".beat")


def _understood(content: bytes) -> NodeStatus:
    try:
        return msgspec.json.decode(content, type=NodeStatus)
    except UNREADABLE as error:
        raise NodeUnreadable from error


def _problem(content: bytes) -> str:
    try:
        problem = msgspec.json.decode(content, type=ProblemDetails)
    except UNREADABLE:
        return content[:200].decode(errors="replace")
    return problem.detail or problem.title
