"""How many nodes one coordinator serves with external groups, with and without snapshots: python tests/benchmarks/snapshots.py

Measures the coordinator's own processor time (not the clients') of an exchange, of asking for the newest snapshot and of
reading it, and for how long a snapshot feeds a node, which asks for the next one when it is used up. Then the arithmetic:
every node wants 4 external groups every 5 s, and a core is used to 80 %. Without snapshots that is an exchange every 5 s; with
them an exchange every 50 s, and a snapshot whenever the last one is used up. ten_times: what ten times as many nodes as without
cost, at the pace that the coordinator asks of so many. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent / "coordinator_gates"))

from common import Server, serving
from tests.support.simulated_nodes import SimNode, SimReport, open_session

from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node.swarm_exchange import SnapshotReader
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.snapshot import SnapshotNews

NODES, AT_ONCE = 200, 32
WANT, EVERY_S, UPLOAD_S, CORE = 4, 5.0, 50.0, 0.8


async def cost(server: Server, work: list[Callable[[], Awaitable[object]]]) -> float:
    """Milliseconds of the coordinator's processor for one of them."""
    waiting = iter(work)

    async def worker() -> None:
        for one in waiting:
            await one()

    before = server.cpu_s
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return 1000 * (server.cpu_s - before) / len(work)


async def measured(server: Server, times: int) -> dict[str, float]:
    report = SimReport(NODES)
    async with (
        open_session(server.invite, AT_ONCE) as session,
        NodeClient(server.invite, Identity.generate()) as reader,
    ):
        await reader.join()
        nodes = [SimNode(session, server.invite, 4, WANT) for _ in range(NODES)]
        for node in nodes:
            await node.join()

        async def rounds() -> float:
            ready = [(node, node.prepare()) for node in (nodes[number % NODES] for number in range(times))]
            return await cost(server, [lambda n=n, p=p: n.send(p, report) for n, p in ready])  # type: ignore[misc]

        await rounds()  # the pool fills, everything is warm
        exchange = await rounds()
        news, _ = await reader.snapshot("")
        sampling, feeds = SnapshotReader(reader, lambda: 0.0), 0
        while len(await sampling.sample(WANT)) == WANT:
            feeds += 1

        async def ask() -> SnapshotNews:
            return (await reader.snapshot(news.id))[0]

        async def read() -> bytes:
            async with session.get(f"/v1/snapshots/{news.id}") as reply:
                return await reply.read()

        asking, reading = await cost(server, [ask] * times), await cost(server, [read] * times)
        size = len(await read())
    assert not report.errors, report.errors
    return {
        "exchange": exchange,
        "news": asking,
        "snapshot": reading,
        "bytes": size,
        "groups": news.groups,
        "feeds_s": feeds * EVERY_S,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    args = parser.parse_args()
    with serving(args.store, round_every_s=0.001, round_burst=100_000, snapshot_s=3600.0) as server:
        ms = asyncio.run(measured(server, args.times))
    snapshot = {name: int(ms.pop(name)) for name in ("bytes", "groups", "feeds_s")}
    without = int(1000 * CORE / ms["exchange"] * EVERY_S)
    news, read = ms["news"] / snapshot["feeds_s"], ms["snapshot"] / snapshot["feeds_s"]
    paced = CoordinatorSettings().target_rounds_per_s
    found = {
        "coordinator_ms": {name: round(value, 3) for name, value in ms.items()},
        "snapshot": snapshot,
        "nodes_on_one_core": {
            "without snapshots": without,
            "with snapshots": int(1000 * CORE / (ms["exchange"] / UPLOAD_S + news + read)),
        },
        "ten_times": {
            "exchange_every_s": round(10 * without / paced, 1),
            "core": round((ms["exchange"] * paced + (news + read) * 10 * without) / 1000, 2),
        },
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
