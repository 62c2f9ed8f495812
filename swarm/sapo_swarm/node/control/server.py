"""The server side of the control API (see sapo_swarm.node.control.api): aiohttp on a Unix socket that only its owner opens,
or on loopback TCP for who has the token (transport)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web

from sapo_swarm.config import RunConfig
from sapo_swarm.events import encode
from sapo_swarm.node.control import transport
from sapo_swarm.node.control.api import BEAT_S, NodeStatus, Problem, heartbeat
from sapo_swarm.node.control.loopback import Loopback
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor.requests import BadCommand
from sapo_swarm.node.storage.journal import JournalError
from sapo_swarm.servers import server_runner
from sapo_swarm.types import UNREADABLE

SOCKET_PATH_LIMIT = 103
"""Bytes that fit into sockaddr_un.sun_path on every Unix."""
LARGEST_SEQ = 2**63 - 1
"""What SQLite counts to."""


class Controlled(Protocol):
    """What the server needs of a node."""

    bus: Bus
    config: RunConfig

    def status(self) -> NodeStatus:
        """What it does now."""
        ...

    def command(self, verb: str, for_s: float, holder: int) -> None:
        """Take a command (governor.requests). Raises BadCommand."""
        ...

    def request_evaluation(self, items: int) -> None:
        """A held-out evaluation after this round. Raises BadCommand."""
        ...

    async def switch_external(self, taking: bool) -> None:
        """Take groups of others, or none. Raises BadCommand, JournalError."""
        ...

    async def go_back(self, rounds: int) -> None:
        """Put the weights after so many rounds in place of the present ones; returns when that is done. Raises BadCommand."""
        ...


class CommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of every POST. for_s in seconds, 0 = without end. holder: a number of the client's own, of hold, renew, release.
    round: of the checkpoint that rollback brings back, -1 where none is named."""

    for_s: float = 0.0
    items: int = 0
    holder: int = 0
    round: int = -1


class ControlServer:
    """Serves one node on one socket. Use `async with`."""

    def __init__(self, node: Controlled, socket: Path) -> None:
        self._node = node
        self._socket = socket
        self._runner: web.AppRunner | None = None
        self._loopback: Loopback | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ControlServer:
        self._loopback = Loopback(self._socket) if transport.kind() == "tcp" else None
        prepare_folder(self._socket, limited=self._loopback is None)
        self._socket.unlink(missing_ok=True)  # the caller holds the home's lock: whatever lies here is stale
        beat = heartbeat(self._socket)  # before the first answer: who has one knows which process falls silent
        beat.write_text(str(os.getpid()), "ascii")
        middlewares = [self._loopback.guard] if self._loopback else []
        app = web.Application(client_max_size=64 * 1024, middlewares=middlewares)
        app.add_routes(
            [
                web.get("/v1/status", self._status),
                web.get("/v1/config", self._config),
                web.get("/v1/events", self._events),
                web.post("/v1/{verb}", self._command),
            ]
        )
        self._runner = server_runner(app, "sapo.control", shutdown_timeout=1.0)
        await self._runner.setup()
        if self._loopback:
            await self._loopback.open(self._runner)
        else:
            await web.UnixSite(self._runner, str(self._socket)).start()
            await asyncio.to_thread(self._socket.chmod, 0o600)
        self._beating = asyncio.create_task(_beat(beat))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._node.bus.close()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        heartbeat(self._socket).unlink(missing_ok=True)
        if self._loopback is not None:
            await self._loopback.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(self._node.status())

    async def _config(self, _request: web.Request) -> web.Response:
        return _json(self._node.config)

    async def _command(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=CommandBody)
            if verb == "evaluate":
                self._node.request_evaluation(body.items)
            elif verb in ("external_on", "external_off"):
                await self._node.switch_external(verb == "external_on")
            elif verb == "rollback":
                await self._node.go_back(body.round)
            else:
                self._node.command(verb, body.for_s, body.holder)
        except UNREADABLE as error:
            return _problem(400, "bad-body", str(error))
        except BadCommand as error:
            return _problem(400, "bad-command", str(error))
        except JournalError as error:
            return _problem(500, "journal", str(error))
        return _json(self._node.status())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        try:
            after, tail = (_number(query.get(name, "0")) for name in ("after", "tail"))
        except ValueError:
            return _problem(400, "bad-query", f"after and tail are whole numbers from 0 to {LARGEST_SEQ}.")
        kinds = tuple(k for k in query.get("kinds", "").split(",") if k)
        follow = query.get("follow", "0") == "1"
        reply = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await reply.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            async with self._node.bus.subscribe(after, kinds, tail) as (past, queue):
                for start in range(0, len(past), 256):
                    await reply.write(b"".join(encode(e) + b"\n" for e in past[start : start + 256]))
                while follow and (event := await queue.get()) is not None:
                    if not kinds or event.__struct_config__.tag in kinds:
                        await reply.write(encode(event) + b"\n")
        return reply


def _number(text: str) -> int:
    """Raises ValueError where it is none that a journal counts by."""
    number = int(text)
    if not 0 <= number <= LARGEST_SEQ:
        raise ValueError(text)
    return number


async def _beat(path: Path) -> None:
    """A sign of life, once a second, until cancelled."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(os.utime, path)
        await asyncio.sleep(BEAT_S)


def prepare_folder(socket: Path, limited: bool = True) -> None:
    """Make the folder 0700 and ours. limited: a socket's path has to be short. Raises OSError that says what to do."""
    if limited and len(os.fsencode(socket)) > SOCKET_PATH_LIMIT:
        raise OSError(f"The path {socket} is too long for a socket. Set SAPO_HOME to a shorter folder.")
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = socket.parent.stat()
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        raise OSError(f"{socket.parent} belongs to another user. Remove it or set SAPO_HOME to a folder of your own.")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        socket.parent.chmod(0o700)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _problem(status: int, code: str, detail: str) -> web.Response:
    body = msgspec.json.encode(Problem(title=code, detail=detail, code=code, status=status))
    return web.Response(status=status, body=body, content_type="application/problem+json")
