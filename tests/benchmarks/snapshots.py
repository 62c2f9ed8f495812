"""How many nodes one coordinator serves with external groups, with and without snapshots: python tests/benchmarks/snapshots.py

Measures the coordinator's own processor time (not the clients') of an exchange that samples, of one that only uploads, of
asking for the newest snapshot and of reading it. Then the arithmetic: every node wants 4 external groups every 5 s, and a core
is used to 80 %. Without snapshots that is an exchange every 5 s; with them an upload every 50 s, the news every 30 s and the
bytes every 30 s (from the coordinator, or from a cache in front of it). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "coordinator_gates"))

from common import Server, serving

from sapo_lab.simulated_nodes import SimNode, SimReport, open_session
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.snapshot import SnapshotNews

NODES, AT_ONCE = 200, 32
EVERY_S, UPLOAD_S, SNAPSHOT_S, CORE = 5.0, 50.0, 30.0, 0.8


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
        nodes = [SimNode(session, server.invite, 4, 4) for _ in range(NODES)]
        for node in nodes:
            await node.join()

        async def rounds(want: int) -> float:
            ready = []
            for number in range(times):
                node = nodes[number % NODES]
                node._want = want
                ready.append((node, node.prepare()))
            return await cost(server, [lambda n=n, p=p: n.send(p, report) for n, p in ready])  # type: ignore[misc]

        await rounds(4)  # the pool fills, everything is warm
        sampling, uploading = await rounds(4), await rounds(0)
        news, _ = await reader.snapshot("")

        async def ask() -> SnapshotNews:
            return (await reader.snapshot(news.id))[0]

        async def read() -> bytes:
            async with session.get(f"/v1/snapshots/{news.id}") as reply:
                return await reply.read()

        asking, reading = await cost(server, [ask] * times), await cost(server, [read] * times)
        size = len(await read())
    assert not report.errors, report.errors
    return {
        "exchange": sampling,
        "upload": uploading,
        "news": asking,
        "snapshot": reading,
        "bytes": size,
        "groups": news.groups,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    args = parser.parse_args()
    with serving(args.store, round_every_s=0.001, round_burst=100_000, snapshot_s=3600.0) as server:
        ms = asyncio.run(measured(server, args.times))
    size, groups = ms.pop("bytes"), ms.pop("groups")
    without = ms["exchange"] / EVERY_S
    uploads = ms["upload"] / UPLOAD_S + ms["news"] / SNAPSHOT_S
    found = {
        "coordinator_ms": {name: round(value, 3) for name, value in ms.items()},
        "snapshot": {"bytes": int(size), "groups": int(groups)},
        "nodes_on_one_core": {
            "without snapshots": int(1000 * CORE / without),
            "with snapshots": int(1000 * CORE / (uploads + ms["snapshot"] / SNAPSHOT_S)),
            "with snapshots behind a cache": int(1000 * CORE / uploads),
        },
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
