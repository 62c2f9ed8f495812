"""A coordinator that answers nonsense: a node's client survives every answer, in time and in little memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from sapo_swarm.protocol.client import OTHER, NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.wire import MEDIA_TYPE, GroupResult, RoundReply, encode_message

REPLY = RoundReply(
    results=(),
    sample=[],
    receipts=(),
    uptake=0,
    mine=9,
    total=1,
    window_s=3600.0,
    nodes=2,
    rounds_per_s=1.0,
    pool=0,
    next_in_s=0.0,
)
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(body: bytes, head: str = "") -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def coordinator(answer: Answer) -> AsyncIterator[NodeClient]:
    """A client of a server that answers everything like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().lower().split("\r\n")
                length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
                await reader.readexactly(length)
                await answer(writer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with NodeClient(Invite("127.0.0.1", port, "a" * 16), Identity.generate(), timeout_s=3.0) as client:
            yield client
    finally:
        server.close()


async def test_interim_answers_without_end_are_an_answer_that_never_comes() -> None:
    """Early hints are free to send: a client that reads them all reads for ever."""

    async def hints(writer: asyncio.StreamWriter) -> None:
        for _ in range(20_000):
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
            await writer.drain()
        writer.write(http(encode_message(REPLY)))

    async with coordinator(hints) as client:
        began = time.monotonic()
        result = await client.exchange([], 1)
        assert not result.connected
        assert "interim" in result.sentence
        assert time.monotonic() - began < 2.0


async def test_a_few_interim_answers_are_read_over() -> None:
    """They are allowed by HTTP; the connection stays usable."""

    async def hint(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + http(encode_message(REPLY)))

    async with coordinator(hint) as client:
        for _ in range(3):
            assert (await client.exchange([], 1)).connected


async def test_reasons_that_nobody_knows_are_counted_as_one() -> None:
    """A coordinator that invents a reason for every group would grow the journal for ever."""
    number = 0

    async def inventive(writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        results = (GroupResult(accepted=False, reason=name), GroupResult(accepted=False, reason="stale"))
        writer.write(http(encode_message(msgspec.structs.replace(REPLY, results=results))))

    async with coordinator(inventive) as client:
        for _ in range(5):
            result = await client.exchange([], 1)
            assert result.refused == {OTHER: 1, "stale": 1}
            assert result.share == 1.0, "of one accepted group nine cannot be mine"


async def test_a_page_of_html_is_a_bad_answer() -> None:
    """What a captive portal sends."""

    async def portal(writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"<html>Log in</html>"))

    async with coordinator(portal) as client:
        assert (await client.exchange([], 1)).code == "bad_reply"
