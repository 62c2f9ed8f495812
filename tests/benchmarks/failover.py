"""The primary of the store is killed (-9) under load: python tests/benchmarks/failover.py [--times 5]

A primary, two replicas and a Sentinel on this machine, eight writers that try again as nodes do. Prints a JSON line a kill:
groups acknowledged, how many of them are gone, seconds without an acknowledgement; first as the coordinator does it, then
without waiting for a replica, for comparison. The exit code is 1 when an acknowledged group was lost with waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.redis_sentinel import RedisWithFailover
from tests.support.stores import SWARM, round_of

from sapo_swarm.coordinator.records import PoolLimits
from sapo_swarm.coordinator.store.base import StoreUnavailable
from sapo_swarm.coordinator.store.redis import RedisStore

ENOUGH, WRITERS = 300, 8


async def primary_dies(servers: RedisWithFailover) -> dict[str, Any]:
    """Figures of one kill, and the sentences that were said meanwhile."""
    limits = PoolLimits(capacity=100_000, per_node=100_000, lifetime_s=1e6)
    store = RedisStore(servers.url, limits, namespace=secrets.token_hex(4))
    await store.open()
    await store.found(SWARM)
    acknowledged: dict[int, float] = {}
    refused: set[str] = set()
    numbers = iter(range(100_000))

    async def write(until: int) -> None:
        while len(acknowledged) < until:
            number = next(numbers)
            round_id = secrets.token_hex(32)
            while number not in acknowledged:
                try:
                    await store.exchange(round_of(f"n{number % 50}", [number], round_id=round_id))
                    acknowledged[number] = time.monotonic()
                except StoreUnavailable as error:
                    refused.add(str(error))
                    await asyncio.sleep(0.05)  # a node waits longer

    await asyncio.gather(*(write(ENOUGH) for _ in range(WRITERS)))
    writing = asyncio.gather(*(write(3 * ENOUGH) for _ in range(WRITERS)))
    while len(acknowledged) < 2 * ENOUGH:  # noqa: ASYNC110 - in the middle of it, whenever that is
        await asyncio.sleep(0)
    await asyncio.to_thread(servers.kill_primary)
    await writing
    held = await store._server.exists(*(store._key("text:", f"{number:032x}") for number in acknowledged))
    assert await store.swarm() == SWARM
    await store.close()
    times = sorted(acknowledged.values())
    gap = max(b - a for a, b in itertools.pairwise(times))
    return {"acknowledged": len(times), "lost": len(times) - held, "gap_s": round(gap, 2), "said": sorted(refused)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    lost = 0
    for number in range(2 * (times := parser.parse_args().times)):
        servers = RedisWithFailover()
        waits = number < times
        try:
            with contextlib.nullcontext() if waits else mock.patch.object(RedisStore, "_replicated", mock.AsyncMock()):
                found = asyncio.run(primary_dies(servers))
        finally:
            servers.close()
        lost += found["lost"] if waits else 0
        print(json.dumps({"waits": waits, **found}), flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
