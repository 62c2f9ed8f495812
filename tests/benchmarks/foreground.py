"""How much of its speed a program of the person's keeps while a node trains: one JSON line.

    python tests/benchmarks/foreground.py [--seconds 3] [--pairs 12] [--processes 1 2] [--presets balanced eco] [--person]

A loop of plain arithmetic in so many processes, in turns while the node is paused and while it works (the order changes
from pair to pair), so that whatever else the machine does hits both alike. kept: work done beside the node / work done
beside the paused node, the geometric mean of the pairs with its 95 % interval (Student's t of the logarithms). rounds: that
the node did meanwhile. --person: limits.slow_when_active is on, and somebody types (a terminal
of the system's is read every second).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pty
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / floor) for floor in ("app", "backends", "swarm", "assets"))]

from tests.support import node_process  # noqa: E402

from sapo_desktop.paths import Home  # noqa: E402
from sapo_desktop.services.nodes import supervisor  # noqa: E402
from sapo_desktop.settings import editing  # noqa: E402
from sapo_swarm.node.control_api import ControlClient  # noqa: E402


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


STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % points of Student's t for 1 to 15 degrees of freedom."""


def mean_ratio(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean, and the ends of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle, free = statistics.mean(logs), len(logs) - 1
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) * (STUDENT[free - 1] if free <= len(STUDENT) else 2.0)
    return math.exp(middle), math.exp(middle - spread), math.exp(middle + spread)


async def typing() -> None:
    """A person at a terminal, until cancelled."""
    keyboard, screen = pty.openpty()
    try:
        while True:
            os.write(keyboard, b"a\n")
            os.read(screen, 100)
            await asyncio.sleep(1)
    finally:
        os.close(keyboard)
        os.close(screen)


async def turns(client: ControlClient, seconds: float, pairs: int, processes: int) -> dict[str, object]:
    """The ratios of so many pairs, and what the node did beside."""
    kept, begun = list[float](), (await client.status()).round
    for pair in range(pairs):
        done = {}
        for works in (False, True) if pair % 2 else (True, False):
            if works:
                await client.post("resume")
            else:
                await supervisor.send_command(Home.find(), "pause")  # returns once it is paused
            done[works] = await asyncio.to_thread(work, seconds, processes)
        kept.append(done[True] / done[False])
    mean, low, high = mean_ratio(kept)
    await client.post("resume")
    return {
        "kept": round(mean, 3),
        "interval": [round(low, 3), round(high, 3)],
        "worst": round(min(kept), 3),
        "pairs": pairs,
        "rounds": (await client.status()).round - begun,
        "sentence": (await client.status()).sentence,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--presets", nargs="+", default=["balanced", "eco"])
    parser.add_argument("--person", action="store_true")
    args = parser.parse_args()
    for preset in args.presets:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            os.environ["SAPO_HOME"] = folder
            editing.apply_preset(home / "config.toml", preset)
            for key, value in {"pause_when_active": "false", "slow_when_active": str(args.person).lower()}.items():
                editing.change_setting(home / "config.toml", f"limits.{key}", value)
            person = asyncio.create_task(typing()) if args.person else None
            async with node_process.node(home, "--silo", "--eval-every", "0") as (client, _):
                await node_process.reaches(client, ("round",), lambda event: event.round >= 1)
                for processes in args.processes:
                    found = await turns(client, args.seconds, args.pairs, processes)
                    line = {"preset": preset, "person": args.person, "processes": processes}
                    print(json.dumps(line | found), flush=True)
                await client.post("stop")
            if person is not None:
                person.cancel()


if __name__ == "__main__":
    asyncio.run(main())
