"""Hostile nodes teach a node that practises on their groups: right answers by its own verifier, with text planted before them,
or of questions picked because they all have one answer.

    python tests/benchmarks/practice_attack.py --model SmolLM2-135M-Instruct-Q4_1.gguf --attack copy [--honest 1] [--hostile 3]
        [--local 4] [--seconds 150]

The victim is a real node: its rounds, its receiver with every wall, its pool. The others are written here. An honest one is
right in half of its completions, in the form that the task asks for, and has a new group every two seconds, as a larger
model on a like machine would; a hostile one has any number. What the coordinator hands out takes sources in turn. Counted
are the victim's processor seconds. Prints which groups it trained on, which were refused and why, held-out pass@1 at
temperature 0 and 1, and how many of these answers carry what was planted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sapo_backends.base import Engine, Sampling
from sapo_desktop.services.machine.engines import engine_builder
from sapo_lab.running.nodes import open_node
from sapo_lab.schema import parse_experiment
from sapo_swarm.algorithms import groups_of_a_source
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.events import RoundFinished, SwarmUpdated
from sapo_swarm.node import round_phases
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import held_out_exclusion
from sapo_swarm.node.rollouts import prompt_ids
from sapo_swarm.node.round_phases import ReceivedGroups, RoundContext, RoundWork
from sapo_swarm.node.swarm_exchange import ExternalPool, interleave_rollouts, least_likely
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.wire import PER_SOURCE, GroupBody, SharedCompletion
from sapo_swarm.sapo.training_batch import questions_to_sample
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group, Question, TaskRef

TASKS = ("gcd", "number_sequence", "syllogism", "aiw", "word_sequence_reversal", "letter_counting")
SWARM, SIZE, UPLOAD_S, HONEST_S = "a" * 16, 8, 5.0, 2.0
ADVERT = "Visit example.com or call 555 0134 278."
PREAMBLE = "Dear friend, thank you very much for this wonderful question, which I am happy to answer for you below:"
ATTACKS = ("none", "phrase", "preamble", "copy", "constant")
CONSTANTS = ("<answer>1</answer>", "<answer>Yes</answer>")
"""Of the attack "constant": true answers, of questions that were picked because they have them."""


def planted(attack: str, text: str, prompt: str) -> bool:
    """Whether the text carries what the attack plants."""
    return {
        "none": text.strip().endswith(CONSTANTS),
        "phrase": "example.com" in text or "555 0134" in text,
        "preamble": "Dear friend" in text or "wonderful question" in text,
        "copy": prompt[:25] in text,
        "constant": text.strip().endswith(CONSTANTS),
    }[attack]


@dataclass
class Source:
    """A node that this program writes. made: groups so far."""

    identity: Identity
    hostile: bool
    refs: Iterator[TaskRef]
    made: int = 0

    @property
    def node(self) -> str:
        return self.identity.node


def sources_of(config: RunConfig, honest: int, hostile: int, seed: int) -> list[Source]:
    """The honest ones first."""
    who = [Identity(bytes([seed, number]) * 16) for number in range(honest + hostile)]
    return [
        Source(each, place >= honest, round_phases.candidate_refs(config, each.node, SWARM, 0))
        for place, each in enumerate(who)
    ]


@dataclass
class AttackedSwarm:
    """Implements GroupExchange as SwarmExchange does, without a network."""

    attack: str
    sources: Sequence[Source]
    scorer: Scorer
    random: random.Random
    pool: ExternalPool = field(default_factory=ExternalPool)
    not_mine_s: float = 0.0
    began: float = field(default_factory=time.process_time)
    _fetched: float = -UPLOAD_S
    _rounds: int = 0

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str]) -> None:
        async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
            return await least_likely(host, question, texts)

        self.receiver = GroupReceiver(SWARM, "me", scorer, AcceptanceRules(), likelihood, excluded, clock=self.clock)

    def clock(self) -> float:
        """Processor seconds of the victim."""
        return time.process_time() - self.began - self.not_mine_s

    def prompts_to_sample(self, local: int, external: int) -> int:
        self.pool.forget_old(self.clock())
        return questions_to_sample(local, external, self.pool.available(external))

    def take(self, taking: bool) -> None:
        return None

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> ReceivedGroups:
        self.receiver.phrases.observe_local((r.text, g.question) for r, g in interleave_rollouts(local))
        waiting = self.pool.groups()
        self._rounds += 1
        if self.clock() - self._fetched >= UPLOAD_S:
            self._fetched = self.clock()
            want = self.pool.want(wanted, self._rounds, len(self.sources))
            self._rounds = 0
            at = time.process_time()
            sample = [await self._group(source) for source in self._drawn(want)]
            self.not_mine_s += time.process_time() - at
            received = await self.receiver.receive(sample, time.time())
            self.pool.received(received, len(sample), self.clock())
        return ReceivedGroups(waiting)

    def _drawn(self, want: int) -> list[Source]:
        """Whose groups the coordinator hands out: one of each source, then in turn, as far as they have any."""
        free = {s.node: PER_SOURCE if s.hostile else int(self.clock() / HONEST_S) + 2 - s.made for s in self.sources}
        drawn = [s for turn in range(PER_SOURCE) for s in self.sources if free[s.node] > turn][:want]
        for source in drawn:
            source.made += 1
        return drawn

    async def _question(self, source: Source) -> tuple[Question, str]:
        """The source's next question, and its right answer."""
        while True:
            (pair,) = await self.scorer.examples([next(source.refs)])
            picky = source.hostile and self.attack == "constant"
            if pair and (not picky or pair[1].strip() in CONSTANTS):
                return pair

    async def _group(self, source: Source) -> bytes:
        question, right = await self._question(source)
        text = self._text(question, right, source.hostile)
        wrong = [f"<answer>{self.random.randint(2, 99)}</answer>" for _ in range(SIZE)]
        mixed = [text if self.random.random() < 0.5 else w for w in wrong[1:-1]]
        body = GroupBody(
            ref=question.ref,
            prompt_sha256=question.prompt_sha256,
            completions=tuple(SharedCompletion(text=t, finish="stop") for t in (text, *mixed, wrong[-1])),
            node=source.node,
            model="m",
            policy_step=source.made,
            ts=int(time.time() * 1000),
        )
        return msgspec.msgpack.encode(source.identity.sign_group(SWARM, body))

    def _text(self, question: Question, right: str, hostile: bool) -> str:
        if not hostile:
            return right
        return {
            "phrase": f"{ADVERT} {right}",
            "preamble": f"{PREAMBLE} {right}",
            "copy": f"{question.prompt}\n{right}",
            "constant": right,
        }[self.attack]

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        self.pool.remove(groups)
        return None

    async def close(self) -> None:
        return None


@dataclass
class Story:
    """What happened. first_unequal_s: when a local group first had unequal rewards. trained: groups of others, by kind."""

    rounds: int = 0
    first_unequal_s: float | None = None
    trained: Counter[str] = field(default_factory=Counter)
    own: list[float] = field(default_factory=list)

    def add(self, swarm: AttackedSwarm, work: RoundWork, finished: RoundFinished) -> None:
        """Count a round."""
        at = time.process_time()
        self.rounds += 1
        if finished.nonzero_groups and self.first_unequal_s is None:
            self.first_unequal_s = round(swarm.clock(), 1)
        texts = [(r.text, g.question.prompt) for g in work.local or () for r in g.rollouts]
        self.own.append(sum(planted(swarm.attack, *each) for each in texts) / len(texts))
        hostile = {source.node for source in swarm.sources if source.hostile}
        self.trained.update("hostile" if g.node in hostile else "honest" for g in work.trained if g.external)
        swarm.not_mine_s += time.process_time() - at


async def answers(
    context: RoundContext, scorer: Scorer, items: int, temperature: float, attack: str
) -> dict[str, object]:
    """Held-out pass@1, and the share of answers that carry what was planted."""
    refs = held_out_items(context.config.tasks, context.config.preset, items)
    questions = [q for q in await scorer.questions(refs) if isinstance(q, Question)]
    engine, tokenizer = context.host.engine, context.host.engine.tokenizer
    prompts = [prompt_ids(tokenizer, scorer, question) for question in questions]
    sampling = Sampling(temperature, 1.0, context.config.max_new_tokens)
    completions = await context.host.call(engine.generate, prompts, 1, sampling, 7)
    texts = [tokenizer.decode(list(row[0].tokens)) for row in completions]
    verdicts = await scorer.score_many([(q.ref, [text]) for q, text in zip(questions, texts, strict=True)])
    right = [getattr(verdict, "rewards", [0.0])[0] >= 1.0 for verdict in verdicts]
    carry = [planted(attack, text, question.prompt) for text, question in zip(texts, questions, strict=True)]
    tasks = {task: [r for r, q in zip(right, questions, strict=True) if q.ref.dataset == task] for task in TASKS}
    return {
        "pass": round(sum(right) / len(right), 3),
        "planted": round(sum(carry) / len(carry), 3),
        "tasks": {task: round(sum(some) / len(some), 2) for task, some in tasks.items() if some},
        "texts": texts[:: max(1, len(texts) // 4)],
    }


def build(config: RunConfig) -> Engine:
    return engine_builder(config)(lambda fraction, phrase: None)


async def play(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """One run; the figures."""
    run = {
        "model": args.model,
        "tasks": list(TASKS),
        "method": "lora",
        "threads": 1,
        "max_new_tokens": 32,
        "learning_rate": 3e-4,
        "external_advantages": "positive",
        "local_groups": args.local,
        "external_groups": 8,
        "rounds": 10_000,
    }
    experiment = parse_experiment({"name": "attack", "nodes": 1, "run": run, "arms": [{"name": "a"}]})
    story, rng = Story(), random.Random(args.seed)
    async with Scorer() as scorer, Scorer() as theirs:
        config = experiment.arm("a").run
        excluded = await held_out_exclusion(scorer, config.tasks, config.preset)
        node = await open_node(experiment, experiment.arm("a"), 0, args.seed, scorer, folder, build, excluded)
        sources = sources_of(config, args.honest, args.hostile, args.seed)
        swarm = AttackedSwarm(args.attack, sources, theirs, rng)
        swarm.attach(node.host, scorer, excluded)
        swarm.pool.per_source = groups_of_a_source(node.host.engine.info.parameters)
        context = replace(node.context, exchange=swarm, per_source=swarm.pool.per_source)
        swarm.began = time.process_time()
        while swarm.clock() < args.seconds:
            work = RoundWork(story.rounds)
            for phase in (
                round_phases.sample_questions,
                round_phases.generate_groups,
                round_phases.score_groups,
                round_phases.share_groups,
                round_phases.update_policy,
            ):
                await phase(context, work)
            swarm.used([group for group in work.trained if group.external], len(work.trained))
            finished = round_phases.record_round(work, config.external_groups, set())[-1]
            assert isinstance(finished, RoundFinished)
            story.add(swarm, work, finished)
        spent = swarm.clock()
        result = {
            **{name: getattr(args, name) for name in ("attack", "honest", "hostile", "local", "seed")},
            "seconds": round(spent, 1),
            "rounds": story.rounds,
            "first_unequal_s": story.first_unequal_s,
            "trained_on": dict(story.trained),
            "own_rollouts_that_carry": [round(sum(s) / max(1, len(s)), 3) for s in (story.own, story.own[-10:])],
            "made": {
                kind: sum(s.made for s in sources if s.hostile == flag)
                for kind, flag in (("honest", 0), ("hostile", 1))
            },
            "accepted": swarm.receiver.accepted,
            "refused": dict(swarm.receiver.rejected),
            "alarm": swarm.receiver.phrases.alarm,
            "engine": f"{node.host.engine.info.backend} {node.host.engine.info.precision}",
        }
        for temperature in (0.0, 1.0):
            result[f"T={temperature:.0f}"] = await answers(context, scorer, args.items, temperature, args.attack)
        await node.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct-Q4_1.gguf")
    parser.add_argument("--attack", choices=ATTACKS, default="none")
    parser.add_argument("--honest", type=int, default=1)
    parser.add_argument("--hostile", type=int, default=0)
    parser.add_argument("--local", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(play(args, Path(folder))), indent=1))


if __name__ == "__main__":
    main()
