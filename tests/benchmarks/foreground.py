"""How much of its speed a program of the person's keeps while a node trains: one JSON line.

    python tests/benchmarks/foreground.py [--seconds 3] [--pairs 8] [--processes 1] [--preset balanced]

A loop of plain arithmetic in so many processes, in turns while the node is paused and while it works, so that whatever else
the machine does hits both alike. kept: work done beside the node / work done beside the paused node, median of the pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / floor) for floor in ("app", "backends", "swarm", "assets"))]

from tests.support import node_process  # noqa: E402

from sapo_desktop.paths import Home  # noqa: E402
from sapo_desktop.services.nodes import control  # noqa: E402
from sapo_desktop.settings import editing  # noqa: E402


def loop(seconds: float, done: multiprocessing.connection.Connection) -> None:
    """Counts until the time is over."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        sum(n * n for n in range(2000))
        count += 1
    done.send(count)


def work(seconds: float, processes: int) -> int:
    """Loops that all processes did together."""
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(processes)]
    children = [multiprocessing.Process(target=loop, args=(seconds, sender)) for _, sender in pipes]
    for child in children:
        child.start()
    counts = [receiver.recv() for receiver, _ in pipes]
    for child in children:
        child.join()
    return sum(counts)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--preset", default="balanced")
    args = parser.parse_args()
    kept = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["SAPO_HOME"] = folder
        editing.preset(home / "config.toml", args.preset)
        async with node_process.node(home, "--silo", "--eval-every", "0") as (client, _):
            await node_process.reaches(client, ("round",), lambda event: event.round >= 1)
            for _ in range(args.pairs):
                await control.tell(Home.find(), "pause")  # returns once it is paused
                alone = await asyncio.to_thread(work, args.seconds, args.processes)
                await client.post("resume")
                beside = await asyncio.to_thread(work, args.seconds, args.processes)
                kept.append(beside / alone)
            rounds = (await client.status()).round
            await client.post("stop")
    print(
        json.dumps(
            {
                "preset": args.preset,
                "processes": args.processes,
                "kept": round(statistics.median(kept), 3),
                "range": [round(min(kept), 3), round(max(kept), 3)],
                "rounds": rounds,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
