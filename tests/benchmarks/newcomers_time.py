"""How many groups of honest newcomers a node takes in an open swarm while others spend newcomers' time.

Twenty honest nodes, each in a network of its own, and attackers whose answers are right and whose texts the engine refuses
only once it has read them. Everything that decides is the product's: the coordinator's pool draws the samples, a GroupReceiver
with its TimeQuota judges them. Only the seconds of a reading are given, as measured on real models (--measure MODEL), and the
clock moves by them. A line of JSON for each run: groups of honest newcomers that arrived and were taken, readings in vain, and
their part of the engine's time.

Run: python tests/benchmarks/newcomers_time.py [--seeds 5] [--measure smollm2 | qwen-coder]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))

from tests.unit.swarm.test_receive import ME, NOW, SWARM, AddOne, signed

from sapo_swarm.coordinator.group_pool import GroupPool
from sapo_swarm.coordinator.records import PoolEntry, PoolLimits
from sapo_swarm.coordinator.rules import origin_tag
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.wire import PER_SOURCE
from sapo_swarm.types import Question, TaskRef

READINGS = {"SmolLM2-135M": (0.62, 1.78), "Qwen-0.5B": (1.64, 4.86), "12 s a group": (4.05, 12.0)}
"""Seconds for one text and for four, of 173 tokens each after a prompt of about 60, on one core of an AMD EPYC with AVX-512."""
HONEST, ARRIVALS, EVERY_S, WANT = 20, 40, 30.0, 8
MOST_S = 4 * 3600.0


@dataclass
class Author:
    """identity: a new one for every group if `fresh`. network: as the coordinator sees it."""

    network: str
    honest: bool
    fresh: bool = False
    identity: Identity = field(default_factory=Identity.generate)


def attackers(kind: str) -> list[Author]:
    """kind: "10", "30": as many, each in a network of its own; "fresh 30/1": 30 uploads at a time, each under a new identity,
    from one network."""
    if not kind.startswith("fresh"):
        return [Author(f"198.51.{n}.0/24", False) for n in range(int(kind))]
    number, networks = map(int, kind.removeprefix("fresh ").split("/"))
    return [Author(f"198.51.{n % networks}.0/24", False, fresh=True) for n in range(number)]


class OpenSwarm:
    """A coordinator's pool and one receiver, by one clock."""

    def __init__(self, kind: str, reading: tuple[float, float], seed: int) -> None:
        self.rng, self.now, self.seed, self.vain_s, self.vain = random.Random(seed), 0.0, 10_000, 0.0, 0
        self.authors = [Author(f"203.0.{n}.0/24", True) for n in range(HONEST)] + attackers(kind)
        self.pool, self.reading = GroupPool(PoolLimits()), reading
        self.receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(), self.likelihood)
        self.receiver.clock = lambda: self.now

    async def likelihood(self, _question: Question, texts: Sequence[str]) -> tuple[float, float]:
        one, four = self.reading
        seconds = one + (four - one) / 3 * (min(4, len(texts)) - 1)
        self.now += seconds
        spoiled = any("zalgo" in text for text in texts)
        self.vain += spoiled
        self.vain_s += seconds * spoiled
        return -20.0 if spoiled else -1.0, seconds

    def upload(self) -> None:
        """A group of every author: four right answers and four wrong ones."""
        for author in self.rng.sample(self.authors, len(self.authors)):
            self.seed += 1
            identity = Identity.generate() if author.fresh else author.identity
            word = "so" if author.honest else "zalgo"
            texts = [f"{word} {n} <answer>{self.seed + 1 + (n > 3)}</answer>" for n in range(8)]
            blob = signed(identity, self.seed, texts, ts=int((NOW + self.now) * 1000))
            tag = origin_tag(b"key", author.network)
            self.pool.add(PoolEntry(self.seed.to_bytes(8, "big"), str(self.seed), identity.node, blob, tag), self.now)

    async def run(self) -> dict[str, object]:
        """Until enough groups of honest newcomers came, and what waits was judged."""
        honest = {author.identity.node for author in self.authors if author.honest}
        have: set[bytes] = set()
        came = taken = 0
        while came < ARRIVALS and self.now < MOST_S:
            started = self.now
            self.pool.expire(self.now)
            self.upload()
            sample = self.pool.sample(self.rng, WANT, ME.node, frozenset(have), per_source=PER_SOURCE)
            have.update(entry.id for entry in sample)
            newcomers = honest - {node for node in honest if self.receiver.quota.is_known(node)}
            came += sum(entry.node in newcomers for entry in sample)
            taken += await self.receive(sample, newcomers)
            self.now = max(self.now, started + EVERY_S)
        for _ in range(40):
            self.now += EVERY_S
            taken += await self.receive([], honest)
        part = round(100 * self.vain_s / self.now, 1)
        return {"came": came, "taken": taken, "read in vain": self.vain, "of the engine's time, %": part}

    async def receive(self, sample: Sequence[PoolEntry], newcomers: set[str]) -> int:
        """Groups of newcomers that were taken."""
        origins = [entry.invite for entry in sample]
        groups = await self.receiver.receive([entry.blob for entry in sample], NOW + self.now, origins)
        return sum(group.node in newcomers for group in groups)


async def measure(name: str) -> None:
    """Seconds of readings on a real model, through the product's own reader: wall clock and processor."""
    from real_models import fetch

    from sapo_backends.base import LoadRequest
    from sapo_backends.registry import get_backend
    from sapo_swarm.node.engine_thread import EngineThread
    from sapo_swarm.node.swarm_exchange import least_likely

    host, path = EngineThread(), str(fetch(name))
    await host.load(lambda: get_backend("torch")().load(LoadRequest(path, "lora", "auto", "cpu", threads=1)))
    prompt = "A train leaves at 9:40 and arrives at 13:05. It stops for 25 minutes. How many minutes does it move? " * 2
    work = (
        "First I take the hours from nine to one, which are four, then the minutes, and then I take away the stops. "
        * 6
    )
    question = Question(TaskRef("basic_arithmetic", "starter", 5), prompt, "0" * 64)
    texts = [f"Attempt {n}. {work}<answer>180</answer>" for n in range(4)]
    tokens = len(host.engine.tokenizer.encode_text(texts[0]))
    for count in (1, 4, 1, 4):
        began = time.process_time()
        seconds = (await least_likely(host, question, texts[:count]))[1]
        cpu = time.process_time() - began
        print(
            json.dumps(
                {"model": name, "texts": count, "tokens": tokens, "s": round(seconds, 2), "cpu_s": round(cpu, 2)}
            )
        )
    await host.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["10", "30", "fresh 10/1", "fresh 30/1", "fresh 30/8"])
    parser.add_argument("--measure", metavar="MODEL")
    args = parser.parse_args()
    if args.measure:
        asyncio.run(measure(args.measure))
        return
    for name, reading in READINGS.items():
        for kind in args.kinds:
            runs = [asyncio.run(OpenSwarm(kind, reading, seed).run()) for seed in range(args.seeds)]
            mean: Callable[[str], float] = lambda key, of=runs: round(sum(float(str(r[key])) for r in of) / len(of), 1)  # noqa: E731
            shares = [100 * float(str(r["taken"])) / float(str(r["came"])) for r in runs]
            line = {
                "reading": name,
                "attackers": kind,
                "taken, %": round(sum(shares) / len(shares)),
                "least, %": round(min(shares)),
            }
            print(json.dumps(line | {key: mean(key) for key in list(runs[0])[2:]}), flush=True)


if __name__ == "__main__":
    main()
