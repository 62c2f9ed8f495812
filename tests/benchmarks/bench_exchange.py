"""What a swarm costs a node: time on the critical path, engine time for judging, bytes; and its pace with the
coordinator gone, beside a node that never heard of a swarm.

    python tests/benchmarks/bench_exchange.py [--model starter-1m] [--rounds 20] [--peers 2]

A coordinator and the peers run in processes of their own, the two nodes in this one, at the same time: other load slows
both. Two arms of as many rounds: in the swarm, and with the coordinator stopped. Prints one line of JSON; times in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from sapo_desktop.services.machine import engines
from sapo_desktop.services.swarms import membership
from sapo_desktop.settings import Settings
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RoundFinished
from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.node.swarm import swarm_exchange
from sapo_swarm.node.swarm.likelihood import least_likely
from sapo_swarm.node.swarm.swarm_exchange import SwarmExchange
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.keystore import StoredIdentity

NO_LIMITS = Limits(pause_on_battery=False, max_celsius=0, min_free_memory=0.0, min_free_disk=0.0, nice=0)


@contextlib.contextmanager
def process(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "sapo_desktop", *arguments]
    variables = {**os.environ, "SAPO_HOME": str(home), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def read_invite(coordinator: subprocess.Popen[str]) -> str:
    assert coordinator.stdout is not None
    return next(found[0] for line in coordinator.stdout if (found := re.search(r"sapo://[^']+", line)))


async def play(node: Node, rounds: int) -> list[RoundFinished]:
    """The next so many rounds; the node is running."""
    finished: list[RoundFinished] = []
    async with node.bus.subscribe(node.journal.last_seq) as (_, queue):
        while len(finished) < rounds and (event := await queue.get()) is not None:
            if isinstance(event, RoundFinished):
                finished.append(event)
    return finished


def seconds(rounds: list[RoundFinished]) -> float:
    """Median wall time of a round."""
    return statistics.median(sum(r.seconds.values()) for r in rounds)


def part(rounds: list[RoundFinished], phase: str) -> float:
    return sum(r.seconds.get(phase, 0.0) for r in rounds) / sum(sum(r.seconds.values()) for r in rounds)


async def beside(node: Node, other: Node, rounds: int) -> tuple[list[RoundFinished], float]:
    """The next rounds of a node, and how many rounds it makes for each of the other's in the same time."""
    done = other.rounds_done
    finished = await play(node, rounds)
    return finished, len(finished) / max(other.rounds_done - done, 1)


def timed(seconds: list[float]) -> Callable[..., Awaitable[tuple[float, float]]]:
    """The likelihood of foreign texts, which adds the seconds that it takes of the engine's thread."""

    async def likelihood(*arguments: object) -> tuple[float, float]:
        found = await least_likely(*arguments)
        seconds.append(found[1])
        return found

    return likelihood


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    config = RunConfig(
        model=args.model,
        trainer=args.trainer,
        threads=1,
        eval_every=0,
        local_groups=4,
        external_groups=4,
        learning_rate=1e-12,  # both nodes keep the same policy, so their completions stay equally long
    )
    if args.tasks:
        config = msgspec.structs.replace(config, tasks=tuple(args.tasks.split(",")))
    peer = (
        "--model",
        args.model,
        "--tasks",
        ",".join(config.tasks),
        "--trainer",
        args.trainer,
        "--threads",
        "1",
        "--eval-every",
        "0",
        "--quiet",
    )
    with contextlib.ExitStack() as running:
        host = running.enter_context(process(folder / "host", "coordinator", "--port", "0", "--round-every-s", "1"))
        invite = await asyncio.to_thread(read_invite, host)
        for number in range(args.peers):
            running.enter_context(process(folder / f"peer{number}", "node", "--join", invite, *peer))
        who = StoredIdentity(Identity.generate(), "file", "")
        exchange, _ = await membership.enter(membership.parse(invite), who, Settings(), config)
        alone = msgspec.structs.replace(config, local_groups=8, external_groups=0)
        node = Node(setup(config, folder / "run", exchange, who.identity.node))
        silo = Node(setup(alone, folder / "silo", None, "alone"))
        lives = [asyncio.create_task(node.run()), asyncio.create_task(silo.run())]
        await asyncio.gather(play(node, 1), play(silo, 1))
        while exchange.news().nodes <= args.peers:
            await play(node, 1)
        judging: list[float] = []
        swarm_exchange.least_likely = timed(judging)
        swarm, pace_swarm = await beside(node, silo, args.rounds)
        judged = sum(judging)
        host.send_signal(signal.SIGTERM)
        await play(node, 2)
        away, pace_away = await beside(node, silo, args.rounds)
        sentence = exchange.news().sentence
        node.command("stop")
        silo.command("stop")
        await asyncio.gather(*lives)
    total = sum(sum(r.seconds.values()) for r in swarm)
    return {
        "model": args.model,
        "rounds": args.rounds,
        "round_s": {"swarm": seconds(swarm), "coordinator away": seconds(away)},
        "pace beside a node alone": {"swarm": pace_swarm, "coordinator away": pace_away},
        "exchange share of a round": part(swarm, "exchange"),
        "judging share of a round (engine thread)": judged / total,
        "exchange share of a round, away": part(away, "exchange"),
        "external groups drawn": sum(r.external_groups for r in swarm),
        "bytes sent a round": statistics.mean(r.bytes_sent for r in swarm),
        "bytes received a round": statistics.mean(r.bytes_received for r in swarm),
        "said while away": sentence,
    }


def setup(config: RunConfig, folder: Path, exchange: SwarmExchange | None, key: str) -> NodeSetup:
    made = NodeSetup(config, folder.name, folder, engines.builder(config), lambda: NO_LIMITS, node_key=key)
    if exchange is not None:
        made.exchange, made.swarm = exchange, exchange.client.invite.swarm
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--trainer", default="auto")
    parser.add_argument("--tasks", default="", help="default: the paper's nine")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(args, Path(folder))), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
