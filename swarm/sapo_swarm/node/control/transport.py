"""How the control API travels: a Unix socket, or loopback TCP with a token where there are none (Windows).

Both are found under one path. A socket there is spoken to directly; a file there (mode 0600) holds the port and the token
of this node's life. SAPO_CONTROL=tcp or unix chooses for the server; clients look at what lies there.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sapo_swarm.types import UNREADABLE

if TYPE_CHECKING:
    from aiohttp import web

Kind = Literal["unix", "tcp"]
LOOPBACK = "127.0.0.1"
_LIMIT = 1024
"""Bytes of a token file, at most."""


class Place(msgspec.Struct, frozen=True):
    """The token file: where the node listens, and what a client has to show."""

    port: int
    token: str


def kind() -> Kind:
    """What a node here listens on. Raises OSError where that cannot be."""
    wanted = os.environ.get("SAPO_CONTROL", "").strip().lower()
    if wanted not in ("", "unix", "tcp"):
        raise OSError(f"SAPO_CONTROL is {wanted!r}. Set it to unix or tcp, or not at all.")
    sockets = hasattr(socket, "AF_UNIX") and sys.platform != "win32"
    if wanted == "unix" and not sockets:
        raise OSError("This system has no Unix sockets for Python. Set SAPO_CONTROL to tcp, or not at all.")
    return "tcp" if wanted == "tcp" or not sockets else "unix"


def new_token() -> str:
    """A token for one node's life."""
    return secrets.token_urlsafe(32)


def guard(token: str) -> Any:
    """The middleware that lets in who shows the token."""
    from aiohttp import web

    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(shown, expected):
            return web.Response(status=401, text="This node's control token is missing or wrong.")
        return await handler(request)

    return check


async def listen(runner: web.AppRunner, path: Path, token: str) -> None:
    """Serve at that path; with a token over TCP. Nothing lies there yet. Raises OSError."""
    from aiohttp import web

    if not token:
        await web.UnixSite(runner, str(path)).start()
        await asyncio.to_thread(path.chmod, 0o600)
        return
    await web.TCPSite(runner, LOOPBACK, 0).start()
    await asyncio.to_thread(_write, path, Place(int(runner.addresses[0][1]), token))


def _write(path: Path, place: Place) -> None:
    """The token file, whole or not at all, and its owner's only."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(place))
    partial.replace(path)


async def session(path: Path, limits: Any) -> Any:
    """An aiohttp session with the node at that path; one where nothing lies finds that nobody answers.

    limits: aiohttp.ClientTimeout.
    """
    import aiohttp  # 200 ms: only when a node is spoken to

    place = await asyncio.to_thread(_place, path)
    if place is None:
        connector: Any = (
            aiohttp.UnixConnector(path=str(path), limit=0) if hasattr(socket, "AF_UNIX") else aiohttp.TCPConnector()
        )
        return aiohttp.ClientSession(connector=connector, timeout=limits, base_url="http://node")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=limits,
        base_url=f"http://{LOOPBACK}:{place.port}",
        headers={"Authorization": f"Bearer {place.token}"},
        trust_env=False,
    )


def _place(path: Path) -> Place | None:
    """What a token file says; None where a socket lies, or nothing that can be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_LIMIT), type=Place)
    except (OSError, *UNREADABLE):
        return None
    return found if 0 < found.port < 1 << 16 else None
