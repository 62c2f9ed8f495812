"""What an honest person meets when something is odd: a minute of zeros, a body sent twice, a full disk, a wrong clock."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.support.simulated_nodes import sim_group

from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import (
    MEDIA_TYPE,
    RoundReply,
    SignedGroup,
    Upload,
    decode_message,
    encode_message,
    sha256_hex,
    unpack_msgpack,
)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    fast = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "round_every_s": 0.001, "round_burst": 1000}
    running = await launch_coordinator(msgspec.convert(fast, CoordinatorSettings))
    running.coordinator.stats.ttl_s = 0.0
    yield running
    await running.stop()


async def put(hosted: RunningCoordinator, identity: Identity, body: bytes) -> tuple[int, bytes]:
    """Upload these bytes as this node, signed anew: status and answer."""
    path = f"/v1/rounds/{sha256_hex(body)}"
    now = int(hosted.coordinator.clock() * 1000)
    headers = identity.sign_request("PUT", path, hosted.coordinator.swarm.swarm, now, body).headers()
    async with (
        aiohttp.ClientSession() as session,
        session.put(hosted.url + path, data=body, headers=headers | {"Content-Type": MEDIA_TYPE}) as response,
    ):
        return response.status, await response.read()


async def test_the_status_page_survives_a_minute_whose_rewards_are_all_zero(hosted: RunningCoordinator) -> None:
    """A young model earns nothing at first."""
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        await client.exchange([sim_group(node, hosted.invite.swarm, 1, 0)], 0, reward_local=0.0)
    async with aiohttp.ClientSession() as session, session.get(hosted.url + "/") as page:
        assert page.status == 200
        assert "0.00" in await page.text()


async def test_a_body_sent_again_after_its_groups_went_stale_meets_its_first_verdicts(
    hosted: RunningCoordinator,
) -> None:
    """The first answer was lost on the way; meanwhile the clock went on."""
    node = Identity.generate()
    swarm = hosted.coordinator.swarm.swarm
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
    groups = tuple(sim_group(node, swarm, 1, slot) for slot in range(3))
    old = sim_group(node, swarm, 1, 3, now=time.time() - 899.0)
    body = encode_message(Upload(groups=(old, *groups)))
    status, _ = await put(hosted, node, body)
    assert status == 200
    at = hosted.coordinator.clock
    later: Callable[[], float] = lambda: at() + 60.0  # noqa: E731
    hosted.coordinator.clock = later
    object.__setattr__(hosted.coordinator.rounds, "clock", later)
    status, answer = await put(hosted, node, body)
    assert status == 200
    assert [result.accepted for result in decode_message(answer, RoundReply).results] == [True] * 4


async def test_a_body_that_somebody_else_sent_first_is_judged_for_itself(hosted: RunningCoordinator) -> None:
    """Whoever copies another's upload gets refusals of its own, and the author is not hurt."""
    author, thief = Identity.generate(), Identity.generate()
    swarm = hosted.coordinator.swarm.swarm
    for identity in (author, thief):
        async with NodeClient(hosted.invite, identity) as client:
            await client.join()
    body = encode_message(Upload(groups=tuple(sim_group(author, swarm, 1, slot) for slot in range(3))))
    status, answer = await put(hosted, thief, body)
    assert (status, {r.reason for r in decode_message(answer, RoundReply).results}) == (200, {"author"})
    status, answer = await put(hosted, author, body)
    assert status == 200
    assert all(result.accepted for result in decode_message(answer, RoundReply).results)


@pytest.mark.parametrize("key", ["Bearer ключ".encode(), b"Bearer \xff\xfe", "Ünicode".encode("latin-1")])
async def test_an_admin_key_of_any_bytes_is_a_wrong_key(hosted: RunningCoordinator, key: bytes) -> None:
    """A pasted password is 401, not an error of the coordinator."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
    writer.write(
        b"GET /admin/invites HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: " + key + b"\r\n\r\n"
    )
    status = (await reader.readline()).split()[1]
    writer.close()
    assert status == b"401"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
async def test_a_coordinator_that_cannot_write_is_not_ready(hosted: RunningCoordinator, tmp_path: Path) -> None:
    """The disk is full: reading still works, so only a write tells."""
    import resource
    import signal

    async with aiohttp.ClientSession() as session:
        async with session.get(hosted.url + "/readyz") as response:
            assert response.status == 200
        log = tmp_path / "s.sqlite-wal"
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, old[1]))
        try:
            async with session.get(hosted.url + "/readyz") as response:
                assert (response.status, (await response.json())["code"]) == (503, "store_down")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, handler)
        async with session.get(hosted.url + "/readyz") as response:
            assert response.status == 200, "there is room again"


async def test_groups_of_a_node_whose_clock_is_wrong_bear_the_coordinators_time(hosted: RunningCoordinator) -> None:
    """Half an hour off: requests were corrected, groups were not, and all of them were refused in silence."""
    for off in (-1800.0, 1800.0):
        async with NodeClient(hosted.invite, Identity.generate(), wall=lambda: time.time() + off) as client:  # noqa: B023
            await client.join()
            assert abs(client.unix_time() - time.time()) < 5.0


async def test_a_node_of_which_nothing_is_taken_is_told_so(hosted: RunningCoordinator) -> None:
    """Connected is not yet taking part."""
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        stale = [sim_group(node, hosted.invite.swarm, 1, slot, now=1.0) for slot in range(2)]
        result = await client.exchange(stale, 0)
    assert result.connected
    assert "None of the last 2 groups was taken: 2 came too late" in result.sentence
    assert isinstance(unpack_msgpack(msgspec.msgpack.encode(stale[0]), SignedGroup), SignedGroup)


OURS = ("Sapo-Proto", "Sapo-Node", "Sapo-Time", "Sapo-Nonce", "Sapo-Signature", "Authorization", "X-Forwarded-For")
BODIES = ("Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade")
OTHERS = ("Host", "Cookie", "Range", "If-None-Match", "If-Modified-Since", "Accept")


@pytest.mark.parametrize("path", ["/v1/swarm", "/v1/join", "/admin/invites", "/metrics", "/nowhere", "/"])
async def test_no_bytes_in_any_header_are_an_error_of_the_coordinator(hosted: RunningCoordinator, path: str) -> None:
    """A header may hold bytes that are no text; what quotes them must not fail. An Expect header was a 500 on every path."""
    for name in (*OURS, *BODIES, *OTHERS):
        for value in (b"\xff\xfe", b"\x80", b"\xc3\xa9", b"\xb2", b"9" * 40, b"["):
            reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
            lines = {b"Host": b"127.0.0.1", name.encode(): value, b"Connection": b"close"}
            head = b"".join(key + b": " + said + b"\r\n" for key, said in lines.items())
            writer.write(b"POST " + path.encode() + b" HTTP/1.1\r\n" + head + b"\r\n")
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            assert b" 4" in answer[:13] or b" 2" in answer[:13], (name, value, answer[:100])
