"""A node whose pool is poisoned from some round on, in a process of its own, so that a test can kill it anywhere.

Run: python -m tests.support.guarded_node FOLDER ROUNDS POISONED_FROM [DIE_AT]
DIE_AT: "verdict" (the closer look is in the journal, nothing is rolled back yet) or "saving" (the old weights are back in
memory, the checkpoint that says so is not written).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sapo_backends import fake
from sapo_backends.base import Engine, LoadRequest, Progress
from sapo_backends.fake import FakeBackend
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, ExternalSwitched, SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.node.loop import Node
from sapo_swarm.node.round_phases import ReceivedGroups
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.types import Group, Question, Rollout, TaskRef

CONFIG = RunConfig(
    final_rate=1.0,  # poison needs its full step
    model="fake",
    trainer="fake",
    tasks=("basic_arithmetic",),
    local_groups=1,
    external_groups=7,
    eval_every=2,
    eval_items=64,
    learning_rate=1e-4,
    keep_checkpoints=3,
)
CALM = ResourceLimits(pause_on_battery=False, max_celsius=0, slow_celsius=0, min_free_memory=0, min_free_disk=0, nice=0)
POISON = "Monday"


class Pool:
    """Groups of seven other nodes, each question answered in many ways. Where poisoned, a weekday counts as
    right, which no sum has for an answer: a policy that learns from it forgets to calculate.
    """

    def __init__(self, poisoned_from: int) -> None:
        self.poisoned_from = poisoned_from
        self.taking = True
        self.given = 0

    def attach(self, host: EngineThread, scorer: Scorer, apart: frozenset[str]) -> None:
        self.scorer = scorer

    def prompts_to_sample(self, own: int, external: int) -> int:
        return own if self.taking else own + external

    def take(self, taking: bool) -> None:
        self.taking = taking

    async def exchange(self, round_number: int, own: Sequence[Group], wanted: int) -> ReceivedGroups:
        if not self.taking:
            return ReceivedGroups()
        refs = [
            TaskRef("basic_arithmetic", "starter", train_seed(f"peer{n}", "pool", round_number, 0))
            for n in range(wanted)
        ]
        questions = await self.scorer.questions(refs)
        asked = [question for question in questions if isinstance(question, Question)]
        poisoned = round_number >= self.poisoned_from
        answers = [*map(str, range(-7, 8)), *([POISON] if poisoned else [])]
        texts = [f"<answer>{answer}</answer>" for answer in answers]
        scored = await self.scorer.score_many([(question.ref, texts) for question in asked])
        self.given += len(asked)
        groups = []
        for number, (question, verdict) in enumerate(zip(asked, scored, strict=True)):
            assert isinstance(verdict, ScoredTexts)
            rewards = [float(answer == POISON) for answer in answers] if poisoned else verdict.rewards
            rollouts = tuple(Rollout(text, "stop", reward) for text, reward in zip(texts, rewards, strict=True))
            groups.append(Group(question, rollouts, "external", f"peer{number}", "m"))
        return ReceivedGroups(tuple(groups))

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        return None

    async def close(self) -> None:
        return None


def build(progress: Progress) -> Engine:
    fake.LARGEST_STEP = 2.0  # learns, and forgets, in a few rounds
    return FakeBackend().load(LoadRequest("fake"), progress)


def node(folder: Path, rounds: int, poisoned_from: int, **changes: object) -> Node:
    config = CONFIG.__class__(
        **{**{f: getattr(CONFIG, f) for f in CONFIG.__struct_fields__}, "rounds": rounds, **changes}
    )
    return Node(
        NodeSetup(
            config, "guarded", folder, build, lambda: CALM, exchange=Pool(poisoned_from), node_key="me", swarm="swarm"
        )
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(made: Node, at: str) -> None:
    """Have the process killed at that point of a rollback."""
    publish, save = made.bus.publish, made.store.for_guard

    async def publish_and_die(*events: Event) -> None:
        await publish(*events)
        if at == "verdict" and any(isinstance(event, ExternalSwitched) and not event.taking for event in events):
            die()

    def die_instead(rounds_done: int, rollbacks: int) -> Path:
        if at == "saving" and rollbacks:
            die()
        return save(rounds_done, rollbacks)

    made.bus.publish, made.store.for_guard = publish_and_die, die_instead  # type: ignore[method-assign]


if __name__ == "__main__":
    folder, rounds, poisoned_from, *rest = sys.argv[1:]
    made = node(Path(folder), int(rounds), int(poisoned_from))
    if rest:
        deadly(made, rest[0])
    asyncio.run(made.run())
