"""Gate 1: throughput of one process, and ten thousand nodes at the pace of a swarm."""

from __future__ import annotations

import asyncio
import time

from common import Gate, Server, serving
from tests.support.simulated_nodes import SimNode, SimReport, open_session, simulate


async def rush(server: Server, nodes: int, rounds: int, connections: int) -> SimReport:
    """Rounds as fast as they are answered. They are signed beforehand: the coordinator is what is measured."""
    report = SimReport(nodes)
    async with open_session(server.invite, connections) as session:
        players = [SimNode(session, server.invite, 4, 4) for _ in range(nodes)]
        for player in players:
            await player.join()
        ready = [(player, player.prepare()) for _ in range(rounds) for player in players]
        waiting = iter(ready)

        async def worker() -> None:
            for player, prepared in waiting:
                await player.send(prepared, report)

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(connections)))
        report.seconds = time.perf_counter() - started
    return report


def run(quick: bool, store: str) -> Gate:
    gate = Gate(1, f"throughput and 10,000 nodes ({store})")
    nodes, rounds = (30, 6) if quick else (200, 60)
    with serving(store, round_every_s=0.001, round_burst=100_000) as server:
        before = server.cpu_s
        report = asyncio.run(rush(server, nodes, rounds, 32))
        cpu = 1000 * (server.cpu_s - before) / max(1, report.rounds)
    rate = report.rounds / report.seconds
    gate.figures["as fast as it goes, 4 groups each way"] = report.summary()
    gate.figures["coordinator CPU a round"] = f"{cpu:.2f} ms"
    gate.demands["no errors"] = not report.errors
    if not quick and store == "sqlite":  # asked of one process with its embedded store; a server shares the cores
        gate.demands["at least 800 rounds/s"] = rate >= 800
        gate.demands["p99 at most 100 ms"] = report.quantile(0.99) <= 0.100
    many, seconds, every = (60, 1.5, 1.0) if quick else (10_000, 300.0, 30.0)
    with serving(store, target_rounds_per_s=1000) as server:
        steady = asyncio.run(simulate(server.invite, many, seconds, every, connections=many))
        gate.figures[f"{many} nodes every {every:.0f} s for {seconds:.0f} s"] = steady.summary()
        gate.figures["coordinator memory"] = f"{server.rss / 2**20:.0f} MiB"
    gate.demands["steady: no errors"] = not steady.errors
    gate.demands["steady: p99 at most 250 ms"] = quick or steady.quantile(0.99) <= 0.250
    return gate
