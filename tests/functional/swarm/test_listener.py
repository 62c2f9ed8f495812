"""Before a byte of HTTP: silent handshakes, more connections than there is room for, a process without descriptors."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from sapo_swarm.coordinator import listener
from sapo_swarm.coordinator.admin_client import AdminClient, read_access
from sapo_swarm.coordinator.host import RunningCoordinator, admin_path, launch_coordinator
from sapo_swarm.coordinator.listener import HANDSHAKES, SPARE_FILES, Listener, raise_file_limit
from sapo_swarm.coordinator.metrics import CoordinatorMetrics
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity

Silent = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    raise_file_limit()
    fast = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "round_every_s": 0.001, "tls": True, "connections": 300}
    running = await launch_coordinator(msgspec.convert(fast, CoordinatorSettings))
    yield running
    await running.stop()


async def silent(port: int, count: int) -> Silent:
    """Connections that say nothing."""
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]


async def end(opened: Silent) -> None:
    for _, writer in opened:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def held(listener: Listener) -> int:
    """Connections, handshakes not counted."""
    return listener._count() - len(listener._handshakes)


async def join(hosted: RunningCoordinator) -> float:
    """Seconds that an honest node takes to join, its handshake included."""
    began = time.monotonic()
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
    return time.monotonic() - began


async def test_silent_handshakes_give_way_to_whoever_comes(hosted: RunningCoordinator) -> None:
    """However many there are, so many are held at once, and an honest node is served."""
    opened = await silent(hosted.port, 3 * HANDSHAKES)
    assert await join(hosted) < 5.0
    assert len(hosted.listener._handshakes) <= HANDSHAKES
    turned_away = hosted.coordinator.metrics.turned_away
    assert turned_away >= 2 * HANDSHAKES - 1
    assert f"sapo_connections_turned_away_total {turned_away}\n" in hosted.coordinator.metrics.text(0, 0)
    await end(opened)


@pytest.mark.skipif(sys.platform == "win32", reason="the descriptors of a process are POSIX's")
async def test_six_thousand_silent_connections_cost_little_memory(hosted: RunningCoordinator) -> None:
    """They are no connections of the server yet, so no limit of its saw them: 1.7 GB."""
    import resource

    before = psutil.Process().memory_info().rss
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - hosted.listener.most - 2 * HANDSHAKES - 2 * SPARE_FILES
    opened = []
    for number in range(min(6000, room)):
        opened.append(socket.create_connection(("127.0.0.1", hosted.port)))
        if number % 100 == 0:
            await asyncio.sleep(0)  # what was not accepted waits in the backlog
    assert await join(hosted) < 5.0
    assert psutil.Process().memory_info().rss - before < 64e6
    for connection in opened:
        connection.close()


async def test_a_handshake_has_a_deadline(hosted: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says nothing is out, and holds neither a descriptor nor a buffer."""
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.2)
    ((reader, writer),) = await silent(hosted.port, 1)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert not hosted.listener._handshakes
    writer.close()


async def test_when_it_is_full_the_oldest_of_the_largest_network_gives_way(tmp_path: Path) -> None:
    """Idle connections without a request cannot keep others out."""
    few = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "connections": 20}
    hosted = await launch_coordinator(msgspec.convert(few, CoordinatorSettings))
    opened = await silent(hosted.port, 60)
    assert await join(hosted) < 5.0
    assert held(hosted.listener) <= 20
    await end(opened)
    await hosted.stop()


async def test_connections_that_were_closed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SWEEP_S", 0.0)
    waiting = Listener(asyncio.Protocol, 1000, CoordinatorMetrics())
    port = waiting.start("127.0.0.1", 0)
    await end(await silent(port, 50))
    for _ in range(100):  # the newest are looked at when the next one comes
        await end(await silent(port, 1))
    assert held(waiting) < 50
    await waiting.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
async def test_a_process_of_few_descriptors_holds_fewer_connections_and_says_little(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cap follows `ulimit -n`; running out all the same is one line, not one for every attempt."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, old[1]))
        assert Listener(lambda: asyncio.Protocol(), 20_000, CoordinatorMetrics()).most <= 200 - SPARE_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    metrics = CoordinatorMetrics()
    made = Listener(lambda: asyncio.Protocol(), 20_000, metrics)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            made._make_room("The coordinator ran out of files (x); raise `ulimit -n`.")
    assert len(caplog.records) <= 1
    assert metrics.turned_away == 0, "there was nobody"


async def test_idle_strangers_give_way_before_the_connection_of_a_member(hosted: RunningCoordinator) -> None:
    """Older or newer: whoever signed something keeps the connection, however many silent ones come after it."""
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
        assert (await client.exchange([], 0)).connected
        member = set(hosted.listener._members)
        assert len(member) == 1
        port = hosted.invite.port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        strangers = []
        for _ in range(hosted.listener.most + 20):
            strangers.append(await asyncio.open_connection("127.0.0.1", port, ssl=context))
        assert hosted.coordinator.metrics.turned_away >= 20
        assert held(hosted.listener) <= hosted.listener.most
        assert set(hosted.listener._members) == member, "the connection is still open"
        for _, writer in strangers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in strangers), return_exceptions=True)


async def test_a_body_that_breaks_off_is_no_error_of_the_coordinator(
    hosted: RunningCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback for each would let anybody fill the disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", hosted.invite.port, ssl=context)
    writer.write(b"POST /v1/join HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\nContent-Length: 900\r\n\r\n{")
    await writer.drain()
    while not hosted.coordinator.admission._unread.total():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    writer.transport.abort()
    while hosted.coordinator.admission._unread.total():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert "unexpected error" not in caplog.text


async def test_nobody_chooses_the_network_that_he_counts_for(tmp_path: Path) -> None:
    """Behind a proxy that adds a header of its own, or an address with its port, a made-up first address counts for nothing."""
    behind = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "trust_proxy": True, "prefix_per_s": 5.0}
    hosted = await launch_coordinator(msgspec.convert(behind, CoordinatorSettings))
    async with aiohttp.ClientSession(hosted.url) as session:

        async def status(number: int, *last: str) -> int:
            headers = [("X-Forwarded-For", f"10.0.{number}.1"), *(("X-Forwarded-For", one) for one in last)]
            async with session.get("/healthz", headers=headers) as response:
                return response.status

        for own in ("192.0.2.7", "192.0.2.7:4711", ""):
            statuses = await asyncio.gather(*(status(number, own) for number in range(150)))
            assert 429 in statuses, own
        assert await status(1) == 200
    await hosted.stop()


@pytest.mark.parametrize("everywhere", ["", "::"])
async def test_whoever_listens_on_all_addresses_is_reached_at_those_of_both_families(
    tmp_path: Path, everywhere: str
) -> None:
    """Every invite of this machine works, and so do the host's own commands."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    chosen = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "host": everywhere, "invite_uses": 0}
    settings = msgspec.convert(chosen, CoordinatorSettings)
    hosted = await launch_coordinator(settings)
    try:
        assert {"127.0.0.1", "::1"} <= {invite.host for invite in hosted.invites}
        for invite in hosted.invites:
            async with NodeClient(invite, Identity.generate()) as client:
                assert (await client.join()).swarm == hosted.coordinator.swarm.swarm
        async with AdminClient(read_access(admin_path(settings))) as admin:
            assert [found.uses for found in await admin.invites()] == [len(hosted.invites)]
    finally:
        await hosted.stop()
