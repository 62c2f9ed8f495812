"""A web server on loopback whose connections are few: real sockets, a low cap."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from sapo_swarm.servers import FewConnections

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Silent = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(most: int, idle_s: float, go_on: asyncio.Event) -> AsyncIterator[tuple[int, asyncio.Semaphore]]:
    """Answers once go_on is set. The port, and what is released by each request that is being answered."""
    begun = asyncio.Semaphore(0)

    async def answer(request: web.Request) -> web.Response:
        with few.answering(request):
            begun.release()
            await go_on.wait()
        return web.Response(text="answered")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    bound = socket.create_server(("127.0.0.1", 0))
    few = FewConnections(runner.server, bound, most, idle_s)
    async with few:
        yield bound.getsockname()[1], begun
    await runner.cleanup()


async def ended(silent: list[Silent]) -> None:
    for reader, writer in silent:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_the_connection_that_was_silent_longest_gives_way_and_an_answer_never_does() -> None:
    go_on = asyncio.Event()
    async with served(most=4, idle_s=3600.0, go_on=go_on) as (port, begun), aiohttp.ClientSession() as session:
        first = await asyncio.open_connection("127.0.0.1", port)
        first[1].write(ASK)
        await begun.acquire()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await ended(silent[:17])
        go_on.set()
        assert (await asyncio.wait_for(first[0].readline(), 30)).startswith(b"HTTP/1.1 200")
        async with session.get(f"http://127.0.0.1:{port}/") as answer:
            assert await answer.text() == "answered"
        for _, writer in [first, *silent[17:]]:
            writer.close()


async def test_a_connection_on_which_something_was_answered_outlives_any_number_of_silent_ones() -> None:
    """Strangers without a token cannot end the connections of who has it."""
    go_on = asyncio.Event()
    go_on.set()
    async with served(most=4, idle_s=3600.0, go_on=go_on) as (port, _):
        known, silent = await asyncio.open_connection("127.0.0.1", port), []
        for more in (20, 0):
            known[1].write(ASK)
            assert await asyncio.wait_for(known[0].readuntil(b"answered"), 30)
            silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(more)]
            await ended(silent[:17])
        for _, writer in [known, *silent[17:]]:
            writer.close()


async def test_where_every_connection_is_being_answered_there_is_no_room_for_another() -> None:
    go_on = asyncio.Event()
    async with served(most=2, idle_s=3600.0, go_on=go_on) as (port, begun):
        asked = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in asked:
            writer.write(ASK)
            await begun.acquire()
        await ended([await asyncio.open_connection("127.0.0.1", port)])
        go_on.set()
        for reader, writer in asked:
            assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_a_connection_on_which_nothing_is_answered_is_ended_after_a_while() -> None:
    """Half a request counts as nothing."""
    go_on = asyncio.Event()
    async with served(most=4, idle_s=0.2, go_on=go_on) as (port, begun):
        asked = await asyncio.open_connection("127.0.0.1", port)
        asked[1].write(ASK)
        await begun.acquire()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        silent[1][1].write(b"GET / HTTP/1.1\r\n")
        await ended(silent)
        go_on.set()
        assert (await asyncio.wait_for(asked[0].readline(), 30)).startswith(b"HTTP/1.1 200")
        asked[1].close()
