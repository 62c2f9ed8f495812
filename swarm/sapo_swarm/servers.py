"""What every web server here is built from: a log that strangers cannot fill, few connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from aiohttp import web

# Strangers can make a server write only little, however often they ask.

EVERY_S = 10.0


class RateLimitFilter(logging.Filter):
    """At most one record in ten seconds: with a line for every malformed request anybody could fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -EVERY_S

    def filter(self, _record: logging.LogRecord) -> bool:
        """True for the records that pass."""
        now = time.monotonic()
        if now - self._last < EVERY_S:
            return False
        self._last = now
        return True


def limit_log_rate(log: logging.Logger) -> logging.Logger:
    """The same log, with lines at least ten seconds apart: for aiohttp's, and for whatever a request can cause."""
    if not any(isinstance(log_filter, RateLimitFilter) for log_filter in log.filters):
        log.addFilter(RateLimitFilter())
    return log


def server_runner(application: web.Application, log: str, **options: Any) -> web.AppRunner:
    """The runner of every server here: no log line for an answered request, few for others. options: aiohttp's."""
    return web.AppRunner(application, access_log=None, logger=limit_log_rate(logging.getLogger(log)), **options)


# A web server on loopback with few connections, none idle for long, whichever account of this machine opens them.

MOST = 64
"""Connections at once. When there is no room, the one that was silent longest is closed: first among those on which nothing
was ever answered, else among the others."""
IDLE_S = 60.0
"""A connection on which nothing is answered for this long is closed."""
BACKLOG = 16
PAUSE_S = 0.2


class FewConnections:
    """Accepts connections for a server whose runner is set up, on a bound socket, which it closes at the end. Use `async
    with`."""

    def __init__(self, server: web.Server, bound: socket.socket, most: int = MOST, idle_s: float = IDLE_S) -> None:
        self._server, self._bound, self._most, self._idle_s = server, bound, most, idle_s
        self._strange: OrderedDict[asyncio.BaseTransport, float] = OrderedDict()
        self._known: OrderedDict[asyncio.BaseTransport, float] = OrderedDict()
        self._busy: set[asyncio.BaseTransport] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> FewConnections:
        self._bound.listen(BACKLOG)
        self._bound.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._end_idle())]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._bound.close()

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """While an accepted request is being answered, its connection stays."""
        transport = request.transport
        if transport is None:
            yield
            return
        self._strange.pop(transport, None)
        self._known.pop(transport, None)
        self._busy.add(transport)
        try:
            yield
        finally:
            self._busy.discard(transport)
            self._known[transport] = time.monotonic()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._bound)
            except OSError:  # the client is gone, or the process is out of files: the client comes again
                await asyncio.sleep(PAUSE_S)
                continue
            if not self._has_room():
                connection.close()
                continue
            try:
                transport, _ = await loop.connect_accepted_socket(self._server, connection)
            except OSError:
                connection.close()
                continue
            self._strange[transport] = time.monotonic()

    def _has_room(self) -> bool:
        """Whether there is room for one more, if need be in place of another."""
        if self._held() >= self._most:
            self._forget_closed()
        if self._held() >= self._most and (quiet := self._strange or self._known):
            _abort(quiet.popitem(last=False)[0])
        return self._held() < self._most

    def _held(self) -> int:
        return len(self._strange) + len(self._known) + len(self._busy)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 4)
            self._forget_closed()
            edge = time.monotonic() - self._idle_s
            for quiet in (self._strange, self._known):
                for transport in [transport for transport, since in quiet.items() if since < edge]:
                    del quiet[transport]
                    _abort(transport)

    def _forget_closed(self) -> None:
        for quiet in (self._strange, self._known):
            for transport in [transport for transport in quiet if transport.is_closing()]:
                del quiet[transport]


def _abort(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
