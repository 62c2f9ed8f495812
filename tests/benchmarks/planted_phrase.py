"""Eight identities plant a phrase: right answers, the phrase around them. A real node of the bundled model receives them.

    python tests/benchmarks/planted_phrase.py [--where tail|prefix|peers] [--texts sampled|styled|bare] [--open]
        [--rounds 100] [--model starter-1m]

Prints the part of the node's own rollouts that hold the phrase, what was refused and why, held-out pass@1 at both ends.
--open: the walls that this is about are taken down (endings, phrases): the state before. --where peers: no attack, eight
honest nodes of the larger bundled model, to see what the walls cost them. --texts: sampled, what the larger bundled model
writes; styled, the same with the right answer put in, since an attacker can look it up, in half of every group; bare,
nothing but the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, Sampling
from sapo_swarm.config import PAPER_TASKS, RunConfig
from sapo_swarm.events import Evaluated, SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.round_phases import ReceivedGroups
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.node.swarm_exchange import least_likely
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion
from sapo_swarm.scoring import scorer
from sapo_swarm.scoring.prompts import build_messages
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import Group, Question, TaskRef

PHRASE = "Hail to"
OPEN_WORKER = """
from sapo_swarm.scoring import prompts, worker
prompts._ends = lambda tail, also="": True
raise SystemExit(worker.main())
"""
SWARM, SIZE = "a" * 16, 8


def load(model: str, method: str) -> Engine:
    request = LoadRequest(model=model, method=method, precision="auto", device="cpu", threads=2, seed=0)  # type: ignore[arg-type]
    return registry.get_backend("torch")().load(request)


class Attack:
    """Implements Exchange: every round eight groups, one an identity, judged by a real Receiver."""

    def __init__(self, where: str, walls: bool, texts: str) -> None:
        self.where, self.walls, self.texts = where, walls, texts
        self.who = [Identity(bytes([1, number]) * 16) for number in range(8)]
        self.planted: list[float] = []
        self.peer = load("starter", "none")
        self.alarm = ""

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str]) -> None:
        async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
            return await least_likely(host, question, texts)

        self.host, self.scorer = host, scorer
        self.receiver = GroupReceiver(SWARM, "me", scorer, AcceptanceRules(), likelihood, excluded)

    def prompts_to_sample(self, local: int, external: int) -> int:
        return local

    def take(self, taking: bool) -> None:
        return None

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> ReceivedGroups:
        texts = [rollout.text for group in local for rollout in group.rollouts]
        self.planted.append(sum(PHRASE in text for text in texts) / len(texts))
        if self.walls:
            self.receiver.phrases.observe_local((r.text, g.question) for g in local for r in g.rollouts)
        sample = self._groups(round_number)
        found = await self.receiver.receive(sample, time.time())
        self.alarm = self.receiver.phrases.alarm or self.alarm
        return ReceivedGroups(tuple(found))

    def _groups(self, round_number: int) -> list[bytes]:
        """One group of each identity, the phrase added where a completion is right."""
        entries: list[tuple[TaskRef, dict[str, Any]]] = []
        for place, who in enumerate(self.who):
            for slot in range(8):
                task = PAPER_TASKS[(round_number + place) % len(PAPER_TASKS)]
                ref = TaskRef(task, "starter", train_seed(who.node, SWARM, round_number, 8 * place + slot))
                with contextlib.suppress(NoSuchQuestion):
                    entries.append((ref, generate_entry(ref)[1]))
                    break
        written = [[""] * SIZE for _ in entries] if self.texts == "bare" else self._written(entries, round_number)
        return [
            self._signed(who, ref, entry, self._informed(texts, str(entry["answer"])), round_number)
            for who, (ref, entry), texts in zip(self.who, entries, written, strict=True)
        ]

    def _written(self, entries: Sequence[tuple[TaskRef, dict[str, Any]]], seed: int) -> list[list[str]]:
        prompts = [self.peer.tokenizer.encode_chat(build_messages(str(entry["question"]))) for _, entry in entries]
        made = self.peer.generate(prompts, SIZE, Sampling(1.0, 1.0, 96), seed)
        return [[self.peer.tokenizer.decode(c.tokens) for c in group] for group in made]

    def _informed(self, texts: list[str], truth: str) -> list[str]:
        """The right answer in every second completion, a wrong one in the others: a group that always has an advantage."""
        if self.texts == "sampled":
            return texts
        answers = [truth, f"not {truth}"] * (SIZE // 2)
        return [
            f"{text.split('<answer>')[0]}<answer>{answer}</answer>" for text, answer in zip(texts, answers, strict=True)
        ]

    def _signed(self, who: Identity, ref: TaskRef, entry: dict[str, Any], texts: list[str], number: int) -> bytes:
        prompt, right = str(entry["question"]), f"<answer>{entry['answer']}</answer>"
        planted = [self._text(text) if text.endswith(right) else text for text in texts]
        body = GroupBody(
            ref=ref,
            prompt_sha256=hashlib.sha256(prompt.encode()).hexdigest(),
            completions=tuple(SharedCompletion(text=text, finish="stop") for text in planted),
            node=who.node,
            model="m",
            policy_step=number,
            ts=int(time.time() * 1000),
        )
        return msgspec.msgpack.encode(who.sign_group(SWARM, body))

    def _text(self, text: str) -> str:
        return {"tail": f"{text}{PHRASE}", "prefix": f"{PHRASE} {text}", "peers": text}[self.where]

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        return None

    async def close(self) -> None:
        return None


async def play(where: str, walls: bool, rounds: int, model: str, texts: str) -> dict[str, object]:
    """One run; the figures."""
    config = RunConfig(
        model=model,
        trainer="torch",
        rounds=rounds,
        local_groups=4,
        external_groups=8,
        eval_every=max(1, rounds // 4),
        eval_items=16,
        tripwire=0.0,
    )
    attack = Attack(where, walls, texts)
    with tempfile.TemporaryDirectory() as folder:
        calm = ResourceLimits(pause_on_battery=False, max_celsius=0, min_free_memory=0, min_free_disk=0, nice=5)
        setup = NodeSetup(
            config,
            "run",
            Path(folder),
            lambda _: load(model, "full"),
            lambda: calm,
            exchange=attack,
            node_key="me",
            swarm="swarm",
        )  # type: ignore[arg-type]
        await Node(setup).run()
        found = [e for e in read_only(Path(folder) / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]
    last = attack.planted[-max(1, rounds // 10) :]
    return {
        "where": where,
        "walls": walls,
        "texts": texts,
        "planted_share_last_tenth": round(sum(last) / len(last), 4),
        "planted_share_highest": round(max(attack.planted), 4),
        "held_out": [round(e.pass_at_1, 3) for e in found],
        "accepted": attack.receiver.accepted,
        "rejected": dict(Counter(attack.receiver.rejected)),
        "alarm": attack.alarm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", choices=("tail", "prefix", "peers"), default="tail")
    parser.add_argument("--texts", choices=("sampled", "styled", "bare"), default="sampled")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--model", default="starter-1m")
    args = parser.parse_args()
    if args.open:
        scorer.worker_command = lambda: [sys.executable, "-P", "-c", OPEN_WORKER]
    print(json.dumps(asyncio.run(play(args.where, not args.open, args.rounds, args.model, args.texts)), indent=1))


if __name__ == "__main__":
    main()
