"""A node's share of an exchange, for tests: real scorer, real coordinator, no model."""

from __future__ import annotations

import time

import msgspec

from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.swarm_exchange import SwarmExchange
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import Group, Question, Rollout, TaskRef


def solved(group: Group) -> Group:
    """The group with a right answer and a wrong one."""
    right = generate_entry(group.question.ref)[1]["answer"]
    return msgspec.structs.replace(
        group, rollouts=(Rollout(f"<answer>{right}</answer>", "stop", 1.0), Rollout("no answer", "stop", 0.0))
    )


class Node:
    """A node's share of an exchange: what its rounds would do, without a model."""

    def __init__(
        self,
        hosted: RunningCoordinator,
        scorer: Scorer,
        engine: EngineThread,
        sampling: str = "uniform",
        clock_s: float = 0.0,
    ) -> None:
        """clock_s: by which the wall's clock is wrong."""
        self.identity = Identity.generate()
        self.swarm = hosted.coordinator.swarm.swarm
        self.scorer = scorer
        self.clock_s = clock_s
        self.passed_s = 0.0
        """By the steady clock, since it was made."""
        wall = lambda: time.time() + self.clock_s  # noqa: E731
        self.client = NodeClient(hosted.invite, self.identity, wall=wall)
        policy = AcceptanceRules(logprob_floor=-100.0)
        self.exchange = SwarmExchange(self.client, policy, "m", sampling, own_worker=False, clock=lambda: self.passed_s)
        self.exchange.attach(engine, scorer)

    async def join(self, name: str) -> None:
        await self.client.__aenter__()
        await self.client.join(name, "model of " + name)

    async def groups(self, number: int, count: int = 2, answers: tuple[str, ...] = ("5", "6", "7")) -> list[Group]:
        """Answered questions of this node, scored by itself."""
        refs = [
            TaskRef("basic_arithmetic", "starter", train_seed(self.identity.node, self.swarm, number, slot))
            for slot in range(count)
        ]
        out = []
        for ref, question in zip(refs, await self.scorer.questions(refs), strict=True):
            assert isinstance(question, Question)
            texts = [f"{number} {k}: <answer>{answer}</answer>" for k, answer in enumerate(answers)]
            scored = await self.scorer.score(ref, texts)
            assert isinstance(scored, ScoredTexts)
            rollouts = tuple(Rollout(text, "stop", reward) for text, reward in zip(texts, scored.rewards, strict=True))
            out.append(Group(question, rollouts, model="m"))
        return out

    async def round(self, number: int, own: list[Group], wanted: int = 2) -> tuple[Group, ...]:
        """Hand the groups over, wait until the talk in the background is done: the pool then."""
        await self.exchange.exchange(number, own, wanted)
        await self.exchange.settled()
        return self.exchange.pool.groups()

    def news(self) -> SwarmUpdated:
        return self.exchange.news()
