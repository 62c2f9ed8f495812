"""Gate 2: kill -9 under load. What was acknowledged is there; nothing is there twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Callable

import redis
from common import Gate, Server, start_server, store_address
from tests.support.local_redis import LocalRedis
from tests.support.simulated_nodes import SimNode, open_session

from sapo_swarm.protocol.wire import RoundReply, Upload, decode_message, group_id

KEEP = {"round_every_s": 0.001, "round_burst": 1_000_000, "groups_per_node": 100_000, "pool_groups": 1_000_000}


async def load_until_killed(
    server: Server, acknowledged: set[bytes], after: int, rng: random.Random, kill: Callable[[], None]
) -> None:
    """Twenty nodes exchange; `kill` strikes somewhere after `after` acknowledged rounds, in mid-work."""
    answered = 0
    dead, enough = asyncio.Event(), asyncio.Event()

    async def node(player: SimNode) -> None:
        nonlocal answered
        while not dead.is_set():
            path, body, headers = player.prepare()
            try:
                async with player._session.put(path, data=body, headers=headers) as response:
                    content = await response.read()
            except Exception:  # the coordinator is gone: that is the point
                return
            if response.status == 200:
                results = decode_message(content, RoundReply).results
                groups = decode_message(body, Upload).groups
                acknowledged.update(
                    group_id(group.body) for group, result in zip(groups, results, strict=True) if result.accepted
                )
                answered += 1
                if answered >= after:
                    enough.set()

    async def reaper() -> None:
        await enough.wait()
        await asyncio.sleep(rng.random() * 0.02)
        kill()
        dead.set()

    async with open_session(server.invite, 20) as session:
        players = [SimNode(session, server.invite, 4, 4) for _ in range(20)]
        for player in players:
            await player.join()
        await asyncio.gather(reaper(), *(node(player) for player in players))


def kept(address: str) -> list[bytes]:
    """Ids of the groups in the store, as they lie there."""
    if address.startswith("sqlite:"):
        connection = sqlite3.connect(address.removeprefix("sqlite:"))
        try:
            return [row[0] for row in connection.execute("SELECT id FROM groups")]
        finally:
            connection.close()
    import msgspec

    from sapo_swarm.coordinator.records import PoolEntry

    client = redis.Redis.from_url(address)
    ids: list[bytes] = []
    try:
        for keys in _batches(list(client.scan_iter(match="*slot:*", count=1000))):
            blobs = client.mget(keys)
            ids += [msgspec.msgpack.decode(blob, type=PoolEntry).id for blob in blobs if blob]  # type: ignore[union-attr]
    finally:
        client.close()
    return ids


def _batches(keys: list[bytes], size: int = 500) -> list[list[bytes]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def run(quick: bool, store: str) -> Gate:
    gate = Gate(2, f"kill -9 under load ({store})")
    times, after = (2, 30) if quick else (20, 200)
    acknowledged: set[bytes] = set()
    rng, ready = random.Random(1), []
    redis_server = LocalRedis(sync="no") if store == "redis" else None
    with contextlib.ExitStack() as stack:
        if redis_server is not None:
            stack.callback(redis_server.close)
            address = redis_server.url
        else:
            address = stack.enter_context(store_address(store))
        for turn in range(times):
            server = start_server(address, **KEEP)
            ready.append(server.ready_s)
            if redis_server is not None and turn % 2:  # in turns the coordinator and the store under it
                asyncio.run(load_until_killed(server, acknowledged, after, rng, redis_server.kill))
                server.stop()
                redis_server.start()
            else:
                asyncio.run(load_until_killed(server, acknowledged, after, rng, server.kill))
        server = start_server(address, **KEEP)
        ready.append(server.ready_s)
        server.stop()
        ids = kept(address)
    missing = acknowledged - set(ids)
    gate.figures |= {
        "kills": times if store == "sqlite" else f"{times}, every second one of redis-server itself",
        "groups acknowledged": len(acknowledged),
        "groups in the store": len(ids),
        "acknowledged and missing": len(missing),
        "ready again, slowest": f"{max(ready):.2f} s",
    }
    gate.demands |= {
        "no acknowledged group missing": not missing and bool(acknowledged),
        "no duplicate ids": len(ids) == len(set(ids)),
        "ready in at most 5 s": quick or max(ready) <= 5.0,
    }
    return gate
