"""Seven days at full speed in minutes: what a model's folder holds, what is written a day, how long opening it takes.

    python tests/benchmarks/week.py [--rounds 400000] [--round-s 1.5] [--megabytes 20] [--folder F]

Real storage (journal, update log, checkpoints, thinning) behind the node's own ModelStore and Retention, with 20 MB of
weights and 40 MB of moments, and a clock that is passed in: each round it goes on by --round-s, without training. A round
has the events, the batch and the update log record of a real round of the bundled model (32 groups of 8, 1.8 kB each).
Evaluations, log lines and (--swarm) news of a swarm come as in a real run. To be quick, only --burst of 1000 rounds and the
last 250 have their groups and their batch; what such a round writes is measured by itself before, over 2,000 in a row.
Prints one JSON object; exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.records import evaluation, finished

from sapo_backends.base import LoadRequest, PolicyUpdate, TrainSample
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, GroupRecorded, LogLine, RoundFinished, SwarmUpdated, encode_event
from sapo_swarm.node.checkpoints import folder_bytes
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.journal_thinning import JournalRetention
from sapo_swarm.node.model_store import ModelStore
from sapo_swarm.node.round_phases import RoundWork, UpdateCall
from sapo_swarm.types import Group, Question, Rollout, TaskRef

DAY_S = 86400.0
TOGETHER = 25
"""Rounds without groups that are stored in one transaction, to be quick; a node stores each in its own."""
GROUPS, SIZE, TOKENS, PROMPT = 32, 8, 20, 60
JOURNAL_MB, OPENING_S, DAILY_GB = 200, 1.0, 20.0
TEXT = "the answer is so much as seven and three of a sum that was asked for here now with all steps"
WORDS = TEXT.split()


class Ballast(FakeEngine):
    """The fake engine with as many bytes of weights as a bundled model, and twice that for its optimizer."""

    def __init__(self, megabytes: int) -> None:
        super().__init__(LoadRequest("fake"))
        size = megabytes * 10**6 // 8
        self._ballast = np.random.default_rng(0).random(size)
        self.info = dataclasses.replace(self.info, trainable=megabytes * 10**6 // 4)

    def _weights(self) -> Any:
        return {**super()._weights(), "policy.ballast": self._ballast}

    def _moments(self) -> Any:
        return {**super()._moments(), "first.ballast": self._ballast, "second.ballast": self._ballast}


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=9)) + f" <answer>{rng.randrange(10**6)}</answer>"


def groups(number: int, rng: random.Random) -> list[GroupRecorded]:
    found = []
    for slot in range(GROUPS):
        ref = TaskRef("basic_arithmetic", "starter", rng.randrange(2**31))
        question = Question(ref, " ".join(rng.choices(WORDS, k=PROMPT // 2)), f"{rng.randrange(2**60):064x}")
        rollouts = tuple(Rollout(text(rng), "stop", float(rng.random() < 0.4), TOKENS) for _ in range(SIZE))
        advantages = tuple(rng.gauss(0, 1) for _ in range(SIZE))
        group = Group(question, rollouts, model="starter", advantages=advantages)
        found.append(GroupRecorded(round=number, group=group, trained=True, first_solved=number == 3 and slot == 0))
    return found


def batch(rng: random.Random) -> list[TrainSample]:
    result = []
    for _ in range(GROUPS):
        prompt = tuple(rng.randrange(2048) for _ in range(PROMPT))
        for _ in range(SIZE):
            result.append(TrainSample(prompt, tuple(rng.randrange(2048) for _ in range(TOKENS)), rng.gauss(0, 1)))
    return result


def news(number: int) -> SwarmUpdated:
    return SwarmUpdated(
        coordinator="http://127.0.0.1:8470",
        connected=True,
        sentence="Connected to the swarm",
        window=3600.0,
        share=0.2,
        uptake=number,
        external_share=0.4,
        nodes=5,
        rounds_per_s=0.5,
        made=number * 4,
        accepted=number * 4,
        rejected={"stale": number // 9},
        refused={},
    )


class Week:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args, self.now = folder, args, 0.0
        self.rng = random.Random(1)
        self.config = RunConfig(model="fake", trainer="fake")
        self.engine = Ballast(args.megabytes)
        self.most = 0
        self.log_bytes: list[int] = []
        self.waiting: list[Event] = []
        self.longest_redo = 0

    async def run(self) -> dict[str, Any]:
        journal, host = Journal(self.folder / "journal.db"), EngineThread()
        await host.load(lambda: self.engine)
        bus = EventBus(journal)
        store = ModelStore(self.folder, self.config, host, journal, bus, lambda: self.now)
        await store.open(await store.find(), lambda *_: None)
        retention = JournalRetention(journal, self.config.keep_groups)
        record = batch(self.rng)
        policy = PolicyUpdate(learning_rate=1e-4)
        logged = 0
        for number in range(self.args.rounds):
            full = number % 1000 >= 1000 - self.args.burst or number >= self.args.rounds - 250
            await self._round(number, store, journal, retention, record if full else [], policy, full)
            logged += full
            if full:
                self.log_bytes.append(store.log.written)
            if store.due():
                self.longest_redo = max(self.longest_redo, store.rounds_done - store.saved_rounds)
                await host.call(store.save, "time")
                await store.tell()
                self.most = max(self.most, folder_bytes(self.folder))
            if number % 5000 == 0:
                await retention.settled()
                size, whole = folder_bytes(self.folder) / 1e6, journal.size() / 1e6
                print(f"{number:,} rounds: {size:,.0f} MB, journal {whole:.1f} MB", file=sys.stderr, flush=True)
        journal.append(self.waiting)
        await host.call(store.save, "stop")
        await store.tell()
        await retention.settled()
        await retention.close()
        written = {"checkpoints": store.checkpoints.written}
        store.close()
        await host.close()
        journal.close()
        return written

    async def _round(
        self,
        number: int,
        store: ModelStore,
        journal: Journal,
        retention: JournalRetention,
        record: Any,
        policy: Any,
        full: bool,
    ) -> None:
        self.now += self.args.round_s
        events: list[Event] = [*(groups(number, self.rng) if full else []), finished(number, self.rng.random())]
        events = [msgspec.structs.replace(e, time=1.7e9 + self.now) for e in events]
        if full:
            work = RoundWork(number, call=UpdateCall(record, policy, number))
            store.finished(work, events, {"basic_arithmetic"})
        else:
            store.rounds_done = number + 1
        more: list[Event] = [news(number)] if self.args.swarm else []
        if number % 25 == 0:
            best = 0.3 + 0.4 * number / self.args.rounds
            more.append(evaluation(number + 1, best + self.rng.gauss(0, 0.05)))
        if number % 40 == 0:
            more.append(LogLine(level="info", text=f"something was said in round {number}"))
        self.waiting += [*events, *more]
        if full or number % TOGETHER == 0:
            journal.append(self.waiting)
            self.waiting = []
        retention.round_done(number + 1)
        if number % TOGETHER == 0:
            await retention.settled()


def written_by_this_process() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar"):
            return int(line.split()[1])
    return 0


def bytes_of_a_full_round(args: argparse.Namespace) -> dict[str, float]:
    """What one round with all its groups writes to journal and log, measured over 2,000 of them with their pruning."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        week = Week(Path(folder), argparse.Namespace(**{**vars(args), "rounds": 2000, "burst": 1000, "megabytes": 1}))
        before = written_by_this_process()
        written = asyncio.run(week.run())
        total = written_by_this_process() - before - written["checkpoints"]
        log = week.log_bytes[-1]
        return {"all": total / 2000, "update log": log / 2000}


def opening(folder: Path) -> dict[str, float]:
    """Seconds for a process to open the journal as a node does, and to read what a dashboard reads."""
    began = time.perf_counter()
    journal = Journal(folder / "journal.db")
    journal.last_round()
    journal.newest("checkpoint")
    journal.read(0, ("evaluation", "external"))
    node = time.perf_counter() - began
    began = time.perf_counter()
    kinds = ("run_started", "state", "round", "evaluation", "swarm", "external", "checkpoint", "log")
    history = journal.read(0, kinds)
    tail = journal.read(0, ("group",), 1600)
    lines = b"\n".join(encode_event(event) for event in [*history, *tail])
    dashboard = time.perf_counter() - began
    rounds = [e for e in history if isinstance(e, RoundFinished)]
    journal.close()
    return {
        "node_s": round(node, 3),
        "dashboard_s": round(dashboard, 3),
        "events": len(history),
        "megabytes read": round(len(lines) / 1e6, 1),
        "round records": len(rounds),
        "rounds told": sum(r.covers for r in rounds),
        "first record": [rounds[0].round, rounds[0].covers],
        "coarsest record": max(r.covers for r in rounds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400_000)
    parser.add_argument("--round-s", type=float, default=1.5)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--burst", type=int, default=10, help="of 1000 rounds, those with all their groups")
    parser.add_argument("--swarm", action="store_true", help="news of a swarm every round")
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    began = time.time()
    one = bytes_of_a_full_round(args)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        week = Week(folder, args)
        written = asyncio.run(week.run())
        budget = int(week.config.disk_budget_gb * 1e9)
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(opening, folder).result()
        days = args.rounds * args.round_s / DAY_S
        journal = sum(p.stat().st_size for p in folder.glob("journal.db*"))
        rounds_a_day = DAY_S / args.round_s
        daily = written["checkpoints"] / days + one["all"] * rounds_a_day
        told = {
            "rounds": args.rounds,
            "days": round(days, 2),
            "most_bytes_MB": round(week.most / 1e6),
            "budget_MB": round(budget / 1e6),
            "folder_MB": round(folder_bytes(folder) / 1e6),
            "journal_MB": round(journal / 1e6, 1),
            "opening": opened,
            "written_a_day_GB": {
                "checkpoints": round(written["checkpoints"] / days / 1e9, 2),
                "update log": round(one["update log"] * rounds_a_day / 1e9, 2),
                "journal": round((one["all"] - one["update log"]) * rounds_a_day / 1e9, 2),
                "all": round(daily / 1e9, 2),
            },
            "most rounds to redo after a kill": week.longest_redo,
            "simulated in s": round(time.time() - began),
        }
    told["passed"] = (
        week.most <= budget
        and journal <= JOURNAL_MB * 1e6
        and opened["node_s"] <= OPENING_S
        and opened["dashboard_s"] <= OPENING_S
        and opened["rounds told"] == args.rounds
        and opened["first record"] == [0, 1]
        and daily <= DAILY_GB * 1e9
    )
    print(json.dumps(told, indent=1))
    return 0 if told["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
