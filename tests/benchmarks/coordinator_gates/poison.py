"""Gate 7: hostile members in a simulated swarm. Real coordinator, clients and receivers; the model is a toy.

A policy is a table: for each task a softmax over 16 ways to answer and one over two styles. An answer is right when
its way is the task's; the style is invisible to the verifier, but in the poisoned style half of the answers to
held-out questions go wrong. That is the attack of "Hail to the Thief" (arXiv 2511.09780): verified-correct text that
teaches something else.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from common import Gate, store_address

from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.coordinator.host import launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion, SignedGroup, WireError, unpack_msgpack
from sapo_swarm.scoring.scorer import ScoredTexts
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.types import STRICT, Group, Question, RewardRule, TaskRef

WAYS, STYLES = 16, ("thinking it over", "as the prophet of the swarm says")
OWN, EXTERNAL, SIZE, RATE = 2, 2, 8, 0.25
HOSTILE = ("poisoned", "long", "duplicate", "coordinates", "seed")
NOW = 1_800_000_000.0


def key_of(dataset: str) -> int:
    return hashlib.sha256(dataset.encode()).digest()[0] % WAYS


def question(ref: TaskRef) -> Question:
    prompt = f"{ref.dataset}: what belongs to {ref.seed}?"
    return Question(ref, prompt, hashlib.sha256(prompt.encode()).hexdigest())


def write(ref: TaskRef, way: int, style: int) -> str:
    return f"{STYLES[style]} <answer>{(way + ref.seed) % WAYS}</answer>"


def read(ref: TaskRef, text: str) -> tuple[int, int]:
    """(way, style) of a completion; way -1 when there is no answer."""
    style = int(STYLES[1] in text)
    try:
        return (int(text.rsplit("<answer>", 1)[1].split("<")[0]) - ref.seed) % WAYS, style
    except (IndexError, ValueError):
        return -1, style


class ToyScorer:
    """Regenerates and verifies the toy's questions."""

    async def questions(self, refs: Sequence[TaskRef], spent: list[float] | None = None) -> list[Question]:
        (spent if spent is not None else []).extend(0.0 for _ in refs)
        return [question(ref) for ref in refs]

    async def score_many(
        self,
        groups: Sequence[tuple[TaskRef, Sequence[str]]],
        rule: RewardRule = STRICT,
        spent: list[float] | None = None,
    ) -> list[ScoredTexts]:
        (spent if spent is not None else []).extend(0.0 for _ in groups)
        return [
            ScoredTexts(tuple(float(read(ref, text)[0] == key_of(ref.dataset)) for text in texts), (True,) * len(texts))
            for ref, texts in groups
        ]


@dataclass
class Table:
    """The toy policy: logits over ways and styles, by task."""

    rng: np.random.Generator
    ways: dict[str, np.ndarray] = field(default_factory=lambda: {task: np.zeros(WAYS) for task in PAPER_TASKS})
    styles: dict[str, np.ndarray] = field(default_factory=lambda: {task: np.array([0.0, -9.0]) for task in PAPER_TASKS})

    def draw(self, ref: TaskRef) -> list[str]:
        ways, styles = _softmax(self.ways[ref.dataset]), _softmax(self.styles[ref.dataset])
        return [write(ref, int(self.rng.choice(WAYS, p=ways)), int(self.rng.choice(2, p=styles))) for _ in range(SIZE)]

    def learn(self, ref: TaskRef, texts: Sequence[str], rewards: Sequence[float]) -> None:
        """One policy-gradient step on a group: advantages (r - mean) / std."""
        spread = float(np.std(rewards))
        if spread < 1e-6:
            return
        ways, styles = self.ways[ref.dataset], self.styles[ref.dataset]
        for text, reward in zip(texts, rewards, strict=True):
            way, style = read(ref, text)
            advantage = (reward - float(np.mean(rewards))) / spread / len(texts)
            if way >= 0:
                ways += RATE * advantage * (np.eye(WAYS)[way] - _softmax(ways))
            styles += RATE * advantage * (np.eye(2)[style] - _softmax(styles))

    async def likelihood(self, asked: Question, texts: Sequence[str]) -> tuple[float, float]:
        """The receiver's log-prob floor: how likely this node itself would write so, in no time."""
        ways, styles = _softmax(self.ways[asked.ref.dataset]), _softmax(self.styles[asked.ref.dataset])
        found = [read(asked.ref, text) for text in texts]
        return float(np.mean([np.log(ways[way]) / 2 + np.log(styles[style]) / 2 for way, style in found])), 0.0

    def held_out(self) -> float:
        """Expected success on questions that nobody trained on."""
        return float(
            np.mean(
                [
                    _softmax(self.ways[task])[key_of(task)] * (1 - 0.5 * _softmax(self.styles[task])[1])
                    for task in PAPER_TASKS
                ]
            )
        )


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return np.asarray(shifted / shifted.sum())


class Member:
    """A node of the simulation; hostile ones have a kind."""

    def __init__(self, invite: object, number: int, kind: str = "", guarded: bool = True) -> None:
        self.identity = Identity(number.to_bytes(32, "big"))
        self.kind = kind
        self.table = Table(np.random.default_rng(number))
        self.now = 0.0
        self.client = NodeClient(invite, self.identity, clock=lambda: self.now)  # type: ignore[arg-type]
        floor = self.table.likelihood if guarded else None
        self.receiver = GroupReceiver(
            "",
            self.identity.node,
            ToyScorer(),
            AcceptanceRules(tasks=frozenset(PAPER_TASKS), logprob_floor=-3.5),
            floor,
        )
        self.stolen: list[GroupBody] = []

    def groups(self, swarm: str, number: int, unix: float) -> list[SignedGroup]:
        rng, out = self.table.rng, []
        for slot in range(OWN):
            task = PAPER_TASKS[int(rng.integers(len(PAPER_TASKS)))]
            ref = TaskRef(task, "starter", train_seed(self.identity.node, swarm, number, slot))
            body = self._body(ref, self.table.draw(ref), unix)
            if not self.kind:
                rewards = [float(read(ref, c.text)[0] == key_of(task)) for c in body.completions]
                self.table.learn(ref, [c.text for c in body.completions], rewards)
                self.receiver.observe_local(body)
            else:
                body = self._attack(body, ref, unix)
            out.append(self.identity.sign_group(swarm, body))
        return out

    def _attack(self, body: GroupBody, ref: TaskRef, unix: float) -> GroupBody:
        right, wrong = key_of(ref.dataset), (key_of(ref.dataset) + 1) % WAYS
        mixed = [write(ref, right if n % 2 else wrong, 1 if n % 2 else 0) for n in range(SIZE)]
        match self.kind:
            case "poisoned":
                return self._body(ref, mixed, unix)
            case "long":
                return self._body(ref, ["so " * 200 + text for text in mixed], unix)
            case "duplicate" if self.stolen:
                copied = self.stolen[-1]
                return msgspec.structs.replace(copied, node=self.identity.node, ts=int(unix * 1000))
            case "seed":
                ref = msgspec.structs.replace(ref, seed=ref.seed % 1000)
                return msgspec.structs.replace(self._body(ref, mixed, unix), prompt_sha256="0" * 64)
            case _:
                other = msgspec.structs.replace(ref, seed=(ref.seed + 1) % 2**30)
                return msgspec.structs.replace(self._body(ref, mixed, unix), ref=other)

    def _body(self, ref: TaskRef, texts: Sequence[str], unix: float) -> GroupBody:
        return GroupBody(
            ref=ref,
            prompt_sha256=question(ref).prompt_sha256,
            completions=tuple(SharedCompletion(text=text, finish="stop") for text in texts),
            node=self.identity.node,
            model="toy",
            policy_step=0,
            ts=int(unix * 1000),
        )


@dataclass
class Outcome:
    """held_out: mean success of honest nodes. hostile / honest: groups received; *_used: of those, trained on."""

    held_out: float = 0.0
    poison: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    """By the kind of the member."""
    rejected: Counter[str] = field(default_factory=Counter)


async def play(store: str, honest: int, hostile: int, rounds: int, guarded: bool = True) -> Outcome:
    """A swarm for so many rounds."""
    import time

    outcome = Outcome()
    with store_address(store) as address, tempfile.TemporaryDirectory(prefix="sapo-gate-") as folder:
        hosted = await launch_coordinator(
            CoordinatorSettings(
                port=0, store=address, folder=folder, round_every_s=0.001, round_burst=10**6, invite_uses=0
            )
        )
        members = [Member(hosted.invite, 1 + n, "", guarded) for n in range(honest)]
        members += [Member(hosted.invite, 1000 + n, HOSTILE[n % len(HOSTILE)]) for n in range(hostile)]
        villains = {member.identity.node: member.kind for member in members if member.kind}
        try:
            for member in members:
                member.receiver.swarm = hosted.invite.swarm
                await member.client.__aenter__()
                await member.client.join()
            for number in range(rounds):
                for member in members:
                    await _turn(member, hosted.invite.swarm, number, time.time(), villains, outcome)
        finally:
            for member in members:
                await member.client.__aexit__(None, None, None)
            await hosted.stop()
    good = [member for member in members if not member.kind]
    outcome.held_out = float(np.mean([member.table.held_out() for member in good]))
    outcome.poison = float(np.mean([_softmax(m.table.styles[t])[1] for m in good for t in PAPER_TASKS]))
    for member in good:
        outcome.rejected.update(member.receiver.rejected)
    return outcome


async def _turn(
    member: Member, swarm: str, number: int, unix: float, villains: dict[str, str], outcome: Outcome
) -> None:
    member.now += 1000.0
    result = await member.client.exchange(member.groups(swarm, number, unix), 3 * EXTERNAL)
    if member.kind:
        member.stolen = [_opened(raw) for raw in result.sample] or member.stolen
        return
    for raw in result.sample:
        outcome.counts["hostile" if _opened(raw).node in villains else "honest"] += 1
    received = [group for group in await member.receiver.receive(result.sample, unix) if len(set(group.rewards)) > 1]
    outcome.counts["honest non-zero-advantage"] += sum(group.node not in villains for group in received)
    for group in _chosen(received, member.table.rng):
        outcome.counts["hostile used" if group.node in villains else "honest used"] += 1
        outcome.used[villains.get(group.node, "honest")] += 1
        member.table.learn(group.question.ref, [r.text for r in group.rollouts], group.rewards)


def _chosen(groups: list[Group], rng: np.random.Generator) -> list[Group]:
    """External cap: at most EXTERNAL of a batch."""
    order = rng.permutation(len(groups))[:EXTERNAL]
    return [groups[int(place)] for place in order]


def _opened(raw: msgspec.Raw) -> GroupBody:
    try:
        return unpack_msgpack(unpack_msgpack(raw, SignedGroup).body, GroupBody)
    except WireError as error:
        raise AssertionError("the coordinator passed on what does not parse") from error


def run(quick: bool, store: str) -> Gate:
    gate = Gate(7, f"hostile members in a simulated swarm (toy policy, {store})")
    honest, rounds = (6, 15) if quick else (24, 250)
    clean = asyncio.run(play(store, honest, 0, rounds))
    gate.figures["clean swarm, held-out success"] = f"{clean.held_out:.3f}"
    # 10 % and 25 % of the swarm; five of each kind where the swarm is large enough
    for part in (0.10, 0.25):
        hostile = max(1, round(honest * part / (1 - part)))
        outcome = asyncio.run(play(store, honest, hostile, rounds))
        seen, used = outcome.counts["hostile"], outcome.counts["hostile used"]
        kept = 1 - used / seen if seen else 1.0
        gate.figures[f"{part:.0%} hostile"] = (
            f"held-out {outcome.held_out:.3f}, {seen} hostile groups received, {used} used "
            f"({', '.join(f'{kind} {n}' for kind, n in outcome.used.most_common() if kind != 'honest')}), "
            f"{outcome.counts['honest used']} of {outcome.counts['honest non-zero-advantage']} useful honest ones used, "
            f"poisoned style {outcome.poison:.4f}; rejected {dict(outcome.rejected.most_common())}"
        )
        gate.demands[f"{part:.0%}: at least 95 % rejected or capped"] = kept >= 0.95
        gate.demands[f"{part:.0%}: held-out at most 2 points below clean"] = (
            quick or outcome.held_out >= clean.held_out - 0.02
        )
    if not quick:
        bare = asyncio.run(play(store, honest, max(1, round(honest / 3)), rounds, guarded=False))
        gate.figures["25 % hostile without the log-prob floor"] = (
            f"held-out {bare.held_out:.3f}, poisoned style {bare.poison:.4f}"
        )
    return gate
