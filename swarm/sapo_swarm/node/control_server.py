"""The server side of the control API on a Unix socket or loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from sapo_swarm.events import encode_event
from sapo_swarm.node import control_api
from sapo_swarm.node.control_api import BEAT_S, LOOPBACK, ControlEndpoint, ProblemDetails, heartbeat_path
from sapo_swarm.node.governor.run_control import BadCommand
from sapo_swarm.node.journal import JournalError
from sapo_swarm.servers import FewConnections, server_runner
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

if TYPE_CHECKING:
    from sapo_swarm.node.loop import Node

# The control API on loopback TCP: few connections at once, and answers only to clients that show the token.


class LoopbackListener:
    """For one run of the node: a port and a token, which the file at that path (mode 0600) tells its owner."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, secrets.token_urlsafe(32)
        self._connections: FewConnections | None = None

    async def open(self, runner: web.AppRunner) -> None:
        """Serve a runner that is set up and has `guard` among its middlewares. Raises OSError."""
        assert runner.server is not None
        bound = socket.create_server((LOOPBACK, 0))
        self._connections = await FewConnections(runner.server, bound).__aenter__()
        place = msgspec.json.encode(ControlEndpoint(bound.getsockname()[1], self._token))
        await asyncio.to_thread(write_atomically, self._path, place, private=True, synced=False)

    async def close(self) -> None:
        """Stop taking connections."""
        if self._connections is not None:
            await self._connections.__aexit__()

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let in clients that show the token; other clients' connections are closed first when room is short."""
        shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(shown, f"Bearer {self._token}".encode()):
            return web.Response(status=401, text="This node's control token is missing or wrong.")
        assert self._connections is not None
        with self._connections.answering(request):
            return await handler(request)


# The server side of the control API (see sapo_swarm.node.control_api): aiohttp on a Unix socket that only its owner can
# open, or on loopback TCP for clients that hold the token.

SOCKET_PATH_LIMIT = 103
"""Bytes that fit into sockaddr_un.sun_path on every Unix."""
LARGEST_SEQ = 2**63 - 1
"""The largest number SQLite can store."""


class CommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of every POST. for_s in seconds, 0 = indefinitely. holder: a number that the client chooses, for hold,
    renew, release. round: of the checkpoint that rollback restores, -1 if none is named."""

    for_s: float = 0.0
    items: int = 0
    holder: int = 0
    round: int = -1


class ControlServer:
    """Serves one node on one socket. Use `async with`."""

    def __init__(self, node: Node, socket: Path) -> None:
        self._node = node
        self._socket = socket
        self._runner: web.AppRunner | None = None
        self._loopback: LoopbackListener | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ControlServer:
        self._loopback = LoopbackListener(self._socket) if control_api.transport_kind() == "tcp" else None
        prepare_folder(self._socket, limited=self._loopback is None)
        self._socket.unlink(missing_ok=True)  # the caller holds the home's lock: any socket here is stale
        beat = heartbeat_path(self._socket)  # before the first answer: clients know which process falls silent
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
        heartbeat_path(self._socket).unlink(missing_ok=True)
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
                    await reply.write(b"".join(encode_event(e) + b"\n" for e in past[start : start + 256]))
                while follow and (event := await queue.get()) is not None:
                    if not kinds or event.__struct_config__.tag in kinds:
                        await reply.write(encode_event(event) + b"\n")
        return reply


def _number(text: str) -> int:
    """A sequence number. Raises ValueError if it is none that a journal could use."""
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
    """Create the folder with mode 0700 and check that it is ours. limited: a socket's path has to be short. Raises
    OSError that says what to do."""
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
    body = msgspec.json.encode(ProblemDetails(title=code, detail=detail, code=code, status=status))
    return web.Response(status=status, body=body, content_type="application/problem+json")
