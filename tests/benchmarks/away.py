"""A coordinator stopped in mid-run: what pace the nodes keep, whether anything acknowledged is lost, how they come back.

    python tests/benchmarks/away.py [--minutes 5] [--nodes 2] [--model starter-1m]

Nodes in a swarm and one that never heard of it (the same work a round once the swarm is away: every batch all its own)
run in processes of their own, at the same time, so other load slows all alike. The coordinator serves, is stopped for so
many minutes, and is started again on the same port. Prints one JSON object; exit code 1 when a node kept less than 95 %
of the lonely one's pace or a group that was acknowledged is not counted any more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.node_process import node, reaches
from tests.support.swarm_process import coordinator, journal, news, rounds

from sapo_swarm.events import Event, RoundFinished
from sapo_swarm.node.control_api import ControlClient
from sapo_swarm.protocol.invite import parse_invite

WANTED = 0.95
LONGEST_BACKOFF_S = 300.0
Window = tuple[float, float]


def flags(model: str, own: int, external: int) -> tuple[str, ...]:
    """A run whose rounds stay alike: the step is too small to change the policy, so no completion grows or shrinks."""
    fixed = ("--model", model, "--threads", "1", "--eval-every", "0", "--learning-rate", "1e-12")
    return (*fixed, "--local-groups", str(own), "--external-groups", str(external), "--checkpoint-every", "50")


async def drew(client: ControlClient) -> None:
    await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.external_groups > 0)


async def returned(client: ControlClient, after: int) -> None:
    """Until the node's next exchange worked."""
    await reaches(client, ("swarm",), lambda e: e.connected, after=after)


def pace(story: list[Event], window: Window) -> float:
    """Rounds a second between the first and the last round that ended in the window."""
    ends = [event.time for event in rounds(story) if window[0] <= event.time <= window[1]]
    return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else float("nan")


def counted(home: Path) -> int:
    """Groups that the stopped coordinator's file credits its members with, in its window of an hour."""
    connection = sqlite3.connect(home / "data" / "swarm.sqlite")
    try:
        return int(connection.execute("SELECT coalesce(sum(value), 0) FROM minutes WHERE key LIKE 'g/%'").fetchone()[0])
    finally:
        connection.close()


async def play(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs everything; the windows and what came back, for the report."""
    homes = [folder / f"node{number}" for number in range(args.nodes)]
    around, away_s = max(30.0, 60 * args.minutes / 5), 60 * args.minutes
    async with AsyncExitStack() as running:
        clients = []
        async with coordinator(folder / "host", "--port", "0", "--round-every-s", "1") as (invite, process):
            for home in homes:
                joined = ("--join", invite, *flags(args.model, 4, 4))
                clients.append((await running.enter_async_context(node(home, *joined)))[0])
            await running.enter_async_context(node(folder / "alone", "--silo", *flags(args.model, 8, 0)))
            await asyncio.gather(*map(drew, clients))
            before = time.time(), time.time() + around
            await asyncio.sleep(around)
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait)
        gone, total = time.time(), counted(folder / "host")
        await asyncio.sleep(away_s)
        seqs = [(await client.status()).seq for client in clients]
        accepted = [[n.accepted for n in news(journal(home))][-1] for home in homes]
        during = gone + min(30.0, away_s / 4), time.time()  # the pool's last groups are used up first
        port = str(parse_invite(invite).port)
        async with coordinator(folder / "host", "--port", port, "--round-every-s", "1"):
            back = time.time()
            waits = await asyncio.gather(
                *(_timed(returned(c, seq), back) for c, seq in zip(clients, seqs, strict=True))
            )
            after = time.time(), time.time() + around
            await asyncio.sleep(around)
    return {
        "windows": {"before": before, "away": during, "after": after},
        "homes": homes,
        "accepted": accepted,
        "counted": total,
        "waits": waits,
    }


async def _timed(work: Any, since: float) -> float:
    async with asyncio.timeout(LONGEST_BACKOFF_S + 120):
        await work
    return time.time() - since


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    played = await play(args, folder)
    alone = journal(folder / "alone")
    stories = [journal(home) for home in played["homes"]]
    lonely = {name: pace(alone, window) for name, window in played["windows"].items()}
    table = [{name: pace(story, window) for name, window in played["windows"].items()} for story in stories]
    kept = [row["away"] / lonely["away"] for row in table]
    lost = max(0, sum(played["accepted"]) - played["counted"])
    last = [news(story)[-1] for story in stories]
    return {
        "model": args.model,
        "minutes away": args.minutes,
        "rounds a minute": {
            name: {"nodes": [round(60 * row[name], 2) for row in table], "alone": round(60 * lonely[name], 2)}
            for name in played["windows"]
        },
        "pace kept while away, of the node alone": [round(part, 3) for part in kept],
        "groups acknowledged before": sum(played["accepted"]),
        "counted by the stopped coordinator": played["counted"],
        "acknowledged and lost": lost,
        "seconds until each node was back": [round(wait, 1) for wait in played["waits"]],
        "external groups of the rounds while away": [
            sum(r.external_groups for r in rounds(s) if within(r, played["windows"]["away"])) for s in stories
        ],
        "external groups of the rounds after": [
            sum(r.external_groups for r in rounds(s) if within(r, played["windows"]["after"])) for s in stories
        ],
        "groups refused, ever": [sum(n.refused.values()) for n in last],
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "passed": min(kept) >= WANTED and not lost,
    }


def within(event: Event, window: Window) -> bool:
    return window[0] <= event.time <= window[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="without a coordinator")
    parser.add_argument("--nodes", type=int, default=2, help="in the swarm; at least two draw from each other")
    parser.add_argument("--model", default="starter-1m")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(measure(args, Path(folder)))
    print(json.dumps(told, indent=1))
    return 0 if told["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
