"""The control API on loopback TCP: few connections at once, and an answer only to who shows the token."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from sapo_swarm.node.control.transport import LOOPBACK, Place
from sapo_swarm.servers import FewConnections
from sapo_swarm.whole_file import write_whole


class Loopback:
    """Of one node's life: a port and a token, which a file at that path (mode 0600) tells its owner."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, secrets.token_urlsafe(32)
        self._connections: FewConnections | None = None

    async def open(self, runner: web.AppRunner) -> None:
        """Serve a runner that is set up and has guard among its middlewares. Raises OSError."""
        assert runner.server is not None
        bound = socket.create_server((LOOPBACK, 0))
        self._connections = await FewConnections(runner.server, bound).__aenter__()
        place = msgspec.json.encode(Place(bound.getsockname()[1], self._token))
        await asyncio.to_thread(write_whole, self._path, place, private=True, synced=False)

    async def close(self) -> None:
        """Takes no connection any more."""
        if self._connections is not None:
            await self._connections.__aexit__()

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Lets in who shows the token; the connections of others give way first."""
        shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(shown, f"Bearer {self._token}".encode()):
            return web.Response(status=401, text="This node's control token is missing or wrong.")
        assert self._connections is not None
        with self._connections.answering(request):
            return await handler(request)
