"""A file behind HTTP on this machine, with whatever is wrong with its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class ServedFile:
    """What the server answers with. length: what it says, -1 = nothing. asked: how often it was asked."""

    body: bytes = b""
    status: str = "200 OK"
    length: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    asked: int = 0
    url: str = ""


@asynccontextmanager
async def served(body: bytes) -> AsyncIterator[ServedFile]:
    """Answers every request with the file as it is then."""
    file = ServedFile(body)
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        await reader.readuntil(b"\r\n\r\n")
        file.asked += 1
        length = len(file.body) if file.length is None else file.length
        headers = {**file.headers, "Connection": "close"} | ({"Content-Length": str(length)} if length >= 0 else {})
        lines = [f"HTTP/1.1 {file.status}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if file.silent else file.body))
        await writer.drain()
        if file.silent:
            await reader.read()  # until the other side goes
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    file.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/swarms.json"
    async with server:
        yield file
    await asyncio.gather(*answering)
