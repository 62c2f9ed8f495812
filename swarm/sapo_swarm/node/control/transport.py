"""How the control API travels: a Unix socket, or loopback TCP with a token where there are none (Windows).

Both are found under one path. A socket there is spoken to directly; a file there (mode 0600) holds the port and the token
of this node's life. SAPO_CONTROL=tcp or unix chooses for the server; clients look at what lies there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from sapo_swarm.types import UNREADABLE

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


async def session(path: Path, limits: Any) -> Any:
    """An aiohttp session with the node at that path; a Unix socket that is not there is found when it is asked.

    limits: aiohttp.ClientTimeout. Raises ConnectionRefusedError where only a token file could name the node, and none lies.
    """
    import aiohttp  # 200 ms: only when a node is spoken to

    place = await asyncio.to_thread(_place, path)
    if place is None:
        if not hasattr(socket, "AF_UNIX"):  # over TCP the name below would be looked up, and whoever has it asked
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
