"""Gates 6 and 8: draws are uniform over live groups, and a flooder gets no more than its share."""

from __future__ import annotations

import asyncio
import math
import random
import re
import secrets
from collections import Counter
from pathlib import Path

from common import Gate, store_address

import sapo_swarm.coordinator
from sapo_swarm.coordinator.group_pool import GroupPool
from sapo_swarm.coordinator.records import PoolEntry, PoolLimits, RoundExchange
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.coordinator.store.base import Store

FORBIDDEN = re.compile(r"""ORDER BY random|['"]KEYS['"]|['"]SCAN['"]|\.keys\(['"]|scan_iter|XRANGE""")


WARM_UP = 3
"""Rounds."""


def entry(node: str, number: int) -> PoolEntry:
    return PoolEntry(number.to_bytes(8, "big"), f"{node}/{number}", node, f"{node}/{number}".encode())


def chi_square_p(counts: list[int]) -> float:
    """Upper tail of the chi-square distribution, by the Wilson-Hilferty approximation."""
    mean, k = sum(counts) / len(counts), len(counts) - 1
    statistic = sum((count - mean) ** 2 / mean for count in counts)
    z = ((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def ring_draws(draws: int) -> float:
    """p of `draws` groups drawn from 250 sources of 4, after a churn that moved slots about."""
    pool, rng = GroupPool(PoolLimits(per_node=4)), random.Random(7)
    for number in range(3000):
        pool.add(entry(f"n{rng.randrange(250)}", number), float(number))
    for node in range(250):
        for number in range(4):
            pool.add(entry(f"n{node}", 10_000 + 4 * node + number), 4000.0)
    counts: Counter[bytes] = Counter()
    nothing: frozenset[bytes] = frozenset()
    while counts.total() < draws:
        counts.update(found.id for found in pool.sample(rng, 4, "reader", nothing))
    return chi_square_p([counts[(10_000 + slot).to_bytes(8, "big")] for slot in range(1000)])


async def store_draws(store: Store, draws: int) -> float:
    """The same over a whole store: 50 sources of 4."""
    for node in range(50):
        await store.exchange(_round(f"n{node}", tuple(entry(f"n{node}", 4 * node + i) for i in range(4)), 0))
    counts: Counter[bytes] = Counter()
    while counts.total() < draws:
        counts.update((await store.exchange(_round("reader", (), 8))).sample)
    return chi_square_p([counts[f"n{node}/{4 * node + i}".encode()] for node in range(50) for i in range(4)])


def _round(node: str, entries: tuple[PoolEntry, ...], want: int, now: float = 1e9) -> RoundExchange:
    return RoundExchange(
        node=node,
        nonce=secrets.token_hex(16),
        round_id=secrets.token_hex(32),
        entries=entries,
        want=want,
        have=frozenset(),
        now=now,
        counts={},
    )


async def _in_store(kind: str, draws: int) -> float:
    with store_address(kind) as address:
        store = open_store(CoordinatorSettings(store=address))
        await store.open()
        try:
            return await store_draws(store, draws)
        finally:
            await store.close()


def run(quick: bool, store: str) -> Gate:
    gate = Gate(6, f"uniform sampling ({store})")
    draws = 40_000 if quick else 1_000_000
    p = ring_draws(draws)
    gate.figures[f"p of {draws} draws from the pool"] = round(p, 4)
    in_store = draws // 20 if quick else draws // 10
    q = asyncio.run(_in_store(store, in_store))
    gate.figures[f"p of {in_store} draws through the store"] = round(q, 4)
    least = 1e-8 if quick else 0.01  # the quick form runs on every commit: chance must not fail it
    gate.demands[f"p > {least}"] = p > least and q > least
    folder = Path(sapo_swarm.coordinator.__path__[0])
    found = [path.name for path in folder.rglob("*.py") if FORBIDDEN.search(path.read_text())]
    gate.figures["files with a scanning command"] = found or "none"
    gate.demands["no KEYS, SCAN, XRANGE or ORDER BY random()"] = not found
    return gate


async def flood(store: Store, nodes: int, rounds: int, deviations: float) -> tuple[float, float]:
    """Share of the flooder's groups in samples of others, and an equal share plus `deviations` standard deviations.

    Counted once every node has filled its place in the pool.
    """
    seen: Counter[str] = Counter()
    for number in range(rounds):
        now = 1e9 + 30.0 * number
        for node in range(nodes):
            name = f"n{node}"
            entries = tuple(entry(name, 1_000_000 * node + 4 * number + i) for i in range(4))
            done = await store.exchange(_round(name, entries, 4, now))
            if number >= WARM_UP:
                seen.update(blob.decode().split("/")[0] for blob in done.sample)
            if node % max(1, nodes // 100) == 0:  # a hundred rounds of the flooder while each other sends one
                flooder = tuple(entry("flood", 10**9 + 4 * (100 * number + node) + i) for i in range(4))
                await store.exchange(_round("flood", flooder, 0, now))
    total = seen.total()
    fair = 1 / nodes
    return seen["flood"] / total, fair + deviations * math.sqrt(fair * (1 - fair) / total)


def run_flood(quick: bool, store: str) -> Gate:
    gate = Gate(8, f"a flooder at 100x its rate ({store})")
    # 2.58: the 99 % bound. The quick form runs on every commit, so chance must not fail it: one in three million.
    nodes, rounds, deviations = (100, WARM_UP + 10, 5.0) if quick else (100, 100, 2.58)

    async def measure() -> tuple[float, float]:
        with store_address(store) as address:
            kept = open_store(CoordinatorSettings(store=address))
            await kept.open()
            try:
                return await flood(kept, nodes, rounds, deviations)
            finally:
                await kept.close()

    share, bound = asyncio.run(measure())
    gate.figures |= {"flooder's share of samples": f"{share:.4f}", "equal share": f"{1 / (nodes + 1):.4f}"}
    gate.demands[f"no more than its share of nodes ({deviations} sigma)"] = share <= bound
    return gate
