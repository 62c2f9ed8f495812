"""The read path that scales: members sample from signed, immutable snapshots."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.simulated_nodes import sim_group
from tests.support.stores import entry, round_of

from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node.swarm_exchange import SnapshotReader
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import make_certificate
from sapo_swarm.protocol.snapshot import SNAPSHOT_GROUPS, open_snapshot, seal_snapshot
from sapo_swarm.protocol.wire import MAX_BODY, SignedGroup, WireError, unpack_msgpack


def settings(folder: Path, **changes: object) -> CoordinatorSettings:
    fast = {"port": 0, "store": f"sqlite:{folder}/s.sqlite", "round_every_s": 0.001, "round_burst": 1000, "tls": True}
    return msgspec.convert(fast | changes, CoordinatorSettings)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    running = await launch_coordinator(settings(tmp_path, invite_uses=0))
    yield running
    await running.stop()


async def share(hosted: RunningCoordinator, nodes: int) -> list[Identity]:
    """So many members with a group each in the pool."""
    who = [Identity.generate() for _ in range(nodes)]
    for number, identity in enumerate(who):
        async with NodeClient(hosted.invite, identity) as client:
            await client.join()
            packed = sim_group(identity, hosted.invite.swarm, number, 0)
            assert (await client.exchange([packed], 0)).accepted == 1
    return who


async def test_a_member_samples_from_a_snapshot_each_group_once_and_none_of_its_own(hosted: RunningCoordinator) -> None:
    who = await share(hosted, 5)
    async with NodeClient(hosted.invite, who[0]) as client:
        now = [0.0]
        reader = SnapshotReader(client, lambda: now[0], random.Random(1))
        first, rest = await reader.sample(3), await reader.sample(9)
        keys = [unpack_msgpack(raw, SignedGroup).key for raw in first + rest]
        assert (len(first), len(rest)) == (3, 1)
        assert set(keys) == {one.public_key for one in who[1:]}
        assert await reader.sample(1) == [], "nothing is requested before the next one is due"
        (newcomer,) = await share(hosted, 1)
        hosted.coordinator.clock = lambda: time.time() + 31.0
        now[0] += 31.0
        (raw,) = await reader.sample(4)
        assert unpack_msgpack(raw, SignedGroup).key == newcomer.public_key


async def test_the_next_snapshot_is_asked_for_when_the_last_one_is_used_up(hosted: RunningCoordinator) -> None:
    """However old that is: a snapshot of many groups feeds a node for minutes (docs/scale.md)."""
    await share(hosted, 5)
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
        now, seen = [0.0], hosted.coordinator.metrics
        reader = SnapshotReader(client, lambda: now[0], random.Random(1))

        async def asked() -> int:
            now[0] += 300.0
            before = seen.requests["/v1/snapshots/newest", 200]
            assert len(await reader.sample(2)) == 2
            return seen.requests["/v1/snapshots/newest", 200] - before

        assert [await asked() for _ in range(2)] == [1, 0]


async def test_a_snapshot_never_changes_and_tells_a_stranger_nothing(hosted: RunningCoordinator) -> None:
    """Its name is its digest; a stranger who reads it sees neither texts nor authors."""
    who = await share(hosted, 3)
    async with NodeClient(hosted.invite, who[0]) as client:
        news, found = await client.snapshot("")
        assert found is not None
        assert (await client.snapshot(news.id))[1] is None
    url = f"{hosted.url}/v1/snapshots/{news.id}"
    async with aiohttp.ClientSession() as stranger, stranger.get(url, ssl=False) as reply:
        data = await reply.read()
        assert reply.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert "Sapo-Time" not in reply.headers
    assert open_snapshot(data, news, hosted.invite.swarm, hosted.invite.fingerprint) == found
    assert len(data) <= MAX_BODY
    assert not any(one.public_key in data or one.node.encode() in data for one in who)


async def test_the_bytes_of_a_snapshot_that_a_cache_kept_for_ten_minutes_leave_the_nodes_clock_alone(
    tmp_path: Path,
) -> None:
    """With the headers of an earlier coordinator, which told the time beside them."""
    hosted = await launch_coordinator(settings(tmp_path, tls=False))
    old = {"Sapo-Time": str(int((time.time() - 600.0) * 1000))}

    async def cache(request: web.Request) -> web.Response:
        whole = await request.read()
        async with aiohttp.request(
            request.method, hosted.url + request.path, data=whole, headers=request.headers
        ) as answer:
            told = {"Sapo-Time": answer.headers["Sapo-Time"]} if "Sapo-Time" in answer.headers else old
            return web.Response(body=await answer.read(), status=answer.status, headers=told)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cache)
    async with (
        TestServer(app) as front,
        NodeClient(replace(hosted.invite, port=front.port), Identity.generate()) as node,
    ):
        await node.join()
        assert (await node.snapshot(""))[1] is not None
        assert abs(node.unix_time() - time.time()) < 60.0
    await hosted.stop()


async def test_only_members_are_told_of_it(hosted: RunningCoordinator) -> None:
    async with NodeClient(hosted.invite, Identity.generate()) as stranger:
        with pytest.raises(Refused) as refused:
            await stranger.snapshot("")
    assert refused.value.code == "unknown_node"


async def test_a_coordinator_without_snapshots_is_asked_seldom(tmp_path: Path) -> None:
    """An older one answers the same: not found."""
    hosted = await launch_coordinator(settings(tmp_path, snapshot_s=0))
    (one,) = await share(hosted, 1)
    async with NodeClient(hosted.invite, one) as client:
        before = hosted.coordinator.metrics.requests.total()
        reader = SnapshotReader(client, time.monotonic)
        assert [await reader.sample(1) for _ in range(5)] == [[]] * 5
        assert hosted.coordinator.metrics.requests.total() - before == 1
    await hosted.stop()


async def test_the_largest_snapshot_fits_a_body(hosted: RunningCoordinator) -> None:
    """Groups of 3 KB that do not compress, of more sources than it takes."""
    store = hosted.store
    for number in range(400):
        big = msgspec.structs.replace(entry(f"n{number}", number), blob=msgspec.msgpack.encode(random.randbytes(3000)))
        await store.exchange(round_of(f"n{number}", [], entries=(big,), now=time.time()))
    groups = await store.snapshot(time.time(), SNAPSHOT_GROUPS)
    swarm = hosted.coordinator.swarm
    _, data = seal_snapshot(swarm.swarm, swarm.certificate, swarm.key, groups, time.time(), 30.0)
    assert 50 <= len(groups) <= SNAPSHOT_GROUPS
    assert len(data) <= MAX_BODY


def test_a_snapshot_that_somebody_changed_or_made_up_is_refused() -> None:
    """Bytes, key, swarm, certificate and time are all held together."""
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    ours, theirs = make_certificate("a" * 16, now), make_certificate("a" * 16, now)
    news, data = seal_snapshot("a" * 16, ours.certificate, ours.key, [b"\x01"], 5.0, 30.0)
    assert open_snapshot(data, news, "a" * 16, ours.fingerprint).made == 5.0
    forged, forged_data = seal_snapshot("a" * 16, theirs.certificate, theirs.key, [b"\x01"], 5.0, 30.0)
    mixed, mixed_data = seal_snapshot("a" * 16, ours.certificate, theirs.key, [b"\x01"], 5.0, 30.0)
    for body, told, swarm, fingerprint in (
        (data[:-1] + b"?", news, "a" * 16, ours.fingerprint),
        (forged_data, forged, "a" * 16, ours.fingerprint),
        (mixed_data, mixed, "a" * 16, ours.fingerprint),
        (data, news, "b" * 16, ours.fingerprint),
        (data, msgspec.structs.replace(news, made=6.0), "a" * 16, ours.fingerprint),
        (data, msgspec.structs.replace(news, key="0" * 64), "a" * 16, ours.fingerprint),
    ):
        with pytest.raises(WireError):
            open_snapshot(body, told, swarm, fingerprint)
