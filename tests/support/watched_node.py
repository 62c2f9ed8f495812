"""A node in this process whose engine counts what it samples, for tests that interrupt it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sapo_backends.base import CancelToken, Completion, Engine, LoadRequest, Progress
from sapo_backends.errors import Cancelled
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

CALM = ResourceLimits(pause_on_battery=False, max_celsius=0, slow_celsius=0, min_free_memory=0, min_free_disk=0)
CONFIG = RunConfig(
    model="fake",
    trainer="fake",
    tasks=("calendar_arithmetic", "basic_arithmetic"),
    eval_every=0,
    local_groups=4,
    rounds=2,
)


class CountingEngine(FakeEngine):
    """sampled: tokens that all calls gave, cancelled ones too. step: called before every decode step, in the engine's thread."""

    def __init__(self, step: Callable[[], None] = lambda: None) -> None:
        super().__init__(LoadRequest("fake"))
        self.sampled = 0
        self._before_step = step

    def generate(
        self,
        prompts: Sequence[Any],
        group_size: int,
        sampling: Any,
        seed: Any,
        cancel: CancelToken | None = None,
        on_tokens: Callable[[int, int], None] | None = None,
    ) -> Any:
        report = on_tokens or (lambda finished, tokens: None)

        def step(finished: int, tokens: int) -> None:
            self._before_step()
            report(finished, tokens)

        try:
            found = super().generate(prompts, group_size, sampling, seed, cancel, step)
        except Cancelled as stopped:
            self.sampled += _tokens(stopped.partial)
            raise
        self.sampled += _tokens(found)
        return found


def _tokens(groups: list[list[Completion]]) -> int:
    return sum(len(c.tokens) for group in groups for c in group)


def make(folder: Path, engine: Engine, config: RunConfig = CONFIG, as_left: bool = False) -> Node:
    """A node of a calm machine."""

    def build(progress: Progress) -> Engine:
        return engine

    return Node(NodeSetup(config, "watched", folder, build, lambda: CALM, as_left=as_left))


async def follow(node: Node, seen: Callable[[Event], None]) -> None:
    """Run the node to its end; every event it tells is given to `seen`, on the event loop."""
    async with node.bus.subscribe(0) as (_, queue):
        running = asyncio.create_task(node.run())

        async def read() -> None:
            while (event := await queue.get()) is not None:
                seen(event)

        await asyncio.gather(running, read())
