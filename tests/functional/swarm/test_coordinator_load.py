"""A coordinator that gets more than it has room for, or what never ends: deadlines, budgets, waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from tests.support.hosted_swarm import groups_of, hosted, make

from sapo_swarm.coordinator import requests
from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.coordinator.requests import UNREAD_PER_NETWORK
from sapo_swarm.coordinator.server import STATS_ROWS
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import MAX_BODY, MEDIA_TYPE
from sapo_swarm.tasks.catalogue import CATALOGUE

__all__ = ["hosted", "make"]


async def half_a_request(hosted: RunningCoordinator) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose request never ends: its head is whole, its body is not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
    head = "POST /v1/join HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\n"
    writer.write(f"{head}Content-Length: 1000\r\n\r\nabc".encode())
    await writer.drain()
    return reader, writer


async def test_a_body_that_does_not_arrive_in_time_is_408(make: Callable[..., object]) -> None:
    """The deadline is for the whole body."""
    hosted: RunningCoordinator = await make(body_s=0.1)  # type: ignore[misc]
    reader, writer = await half_a_request(hosted)
    answer = await reader.readuntil(b"}")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"timeout"' in answer
    writer.close()


async def test_more_requests_than_there_is_room_for_are_told_to_come_again(hosted: RunningCoordinator) -> None:
    """The cap on requests in flight answers 503 with Retry-After."""
    hosted.coordinator.metrics.in_flight = hosted.coordinator.settings.in_flight
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        with pytest.raises(Refused) as refused:
            await client.info()
    assert refused.value.code == "busy"
    assert refused.value.retry_after_s is not None


async def test_bodies_under_way_take_nobodys_place_and_have_a_budget_for_each_network(
    make: Callable[..., object],
) -> None:
    """Slow bodies from one network: others are served meanwhile, and that network has so many bytes and no more."""
    hosted: RunningCoordinator = await make(
        trust_proxy=True, in_flight=4, joins_per_s=1000.0, prefix_per_s=1000.0, body_s=30.0
    )  # type: ignore[misc]
    head = "POST /v1/join HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\nX-Forwarded-For: {}\r\nContent-Length: 16000\r\n\r\na"
    writers, refused = [], 0
    for number in range(300):
        reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
        writer.write(head.format(f"10.0.0.{number % 250}").encode())
        writers.append((reader, writer))
        if number >= UNREAD_PER_NETWORK // 16_000 + 2:
            refused += (await asyncio.wait_for(reader.readline(), 10)).split()[1] == b"503"
    assert refused > 0
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
    for _, writer in writers:
        writer.close()


async def test_slow_bodies_of_strangers_keep_no_member_from_its_rounds(
    make: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are read before it is known who sends them have their own budget; leaving reads none."""
    monkeypatch.setattr(requests, "UNREAD_BYTES_OF_STRANGERS", 20_000)
    monkeypatch.setattr(requests, "UNREAD_BYTES", MAX_BODY)
    hosted: RunningCoordinator = await make(trust_proxy=True, body_s=60.0)  # type: ignore[misc]
    head = "POST {} HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\nX-Forwarded-For: {}\r\nContent-Length: 16000\r\n\r\na"

    async def slow(path: str, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
        writer.write(head.format(path, address).encode())
        return reader, writer

    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
        first, second = await slow("/v1/join", "2001:db8:1::1"), await slow("/v1/join", "2001:db8:2::1")
        ends = [asyncio.ensure_future(reader.readline()) for reader, _ in (first, second)]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert done.pop().result().split()[1] == b"503", "the budget of strangers is full"
        leaving = await slow("/v1/leave", "2001:db8:3::1")
        assert (await asyncio.wait_for(leaving[0].readline(), 10)).split()[1] == b"413"
        assert (await client.exchange([], 0)).connected
    for end in ends:
        end.cancel()
    for _, writer in (first, second, leaving):
        writer.close()


async def test_a_large_body_is_read_only_once_it_is_known_who_sends_it(hosted: RunningCoordinator) -> None:
    """A stranger's round is refused by its head; a quarter of a megabyte each used to be read first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
    head = f"PUT /v1/rounds/{'0' * 64} HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\nContent-Type: {MEDIA_TYPE}\r\n"
    writer.write(f"{head}Content-Length: 200000\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), 10)).split()[1] == b"401"
    assert hosted.coordinator.metrics.bytes_in == 0
    writer.close()


async def test_whoever_reaches_the_port_sees_who_shares_without_a_page_too(make: Callable[..., object]) -> None:
    """docs/privacy.md says so; nothing of it needs an invite."""
    hosted: RunningCoordinator = await make(page=False, tasks=tuple(CATALOGUE))  # type: ignore[misc]
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join("Ada", "starter")
        assert (await client.exchange(groups_of(node, hosted.invite.swarm, 1), 0)).accepted
    async with aiohttp.ClientSession(hosted.url, headers={"Sapo-Proto": "1"}) as anybody:
        async with anybody.get("/") as page:
            assert page.status == 404
        async with anybody.get("/v1/leaderboard") as answer:
            (row,) = (await answer.json())["nodes"]
        async with anybody.get("/v1/swarm") as answer:
            swarm = await answer.json()
    assert (row["node"], row["name"], row["model"]) == (node.node, "Ada", "starter")
    assert {"groups", "uptake", "seen_s"} <= set(row)
    assert swarm["tasks"] == list(CATALOGUE)
    privacy = " ".join((Path(__file__).parents[3] / "docs/privacy.md").read_text("utf-8").split())
    assert "sees, without an invite, the name, id and model label of the hundred nodes" in privacy
    assert STATS_ROWS == 100


async def test_networks_are_limited_as_a_whole(make: Callable[..., object]) -> None:
    """One /24 gets its rate and no more; another is not touched; joins have a tighter limit of their own."""
    hosted: RunningCoordinator = await make(trust_proxy=True, prefix_per_s=5.0, joins_per_s=0.05)  # type: ignore[misc]
    async with aiohttp.ClientSession(hosted.url) as session:

        async def status(address: str, path: str = "/healthz", method: str = "GET") -> int:
            headers = {"X-Forwarded-For": address, "Sapo-Proto": "1"}
            async with session.request(method, path, headers=headers) as response:
                return response.status

        # the burst of ten at least, and never all: for that the machine would have to take half a minute
        statuses = await asyncio.gather(*(status(f"10.0.0.{n}") for n in range(150)))
        assert statuses.count(200) >= 10
        assert set(statuses) == {200, 429}
        assert await status("10.0.1.1") == 200
        joins = await asyncio.gather(*(status("10.0.2.1", "/v1/join", "POST") for _ in range(30)))
        assert 2 <= joins.count(401) < 10
        assert set(joins) == {401, 429}


async def test_bytes_that_are_no_http_fill_no_log(hosted: RunningCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    """Malformed requests are answered with 400 and leave one line."""
    for _ in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")
        assert (await reader.read(100)).split()[1] == b"400"
        writer.close()
    assert len(caplog.records) <= 1
