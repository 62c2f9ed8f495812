"""Runs of the lab on the engine that ships for tests: played, stopped, read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sapo_backends.base import Engine
from sapo_desktop.services.machine.engines import engine_builder
from sapo_lab.running.nodes import LabNode, open_node
from sapo_lab.running.run import CompletedRun, RunProgress, run_arm, run_folder
from sapo_lab.schema import Experiment, parse_experiment
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RoundFinished
from sapo_swarm.node.journal import read_only
from sapo_swarm.scoring.scorer import Scorer

Play = Callable[..., Awaitable[CompletedRun]]

RUN = {
    "trainer": "fake",
    "model": "fake",
    "tasks": ["calendar_arithmetic", "basic_arithmetic"],
    "rounds": 4,
    "group_size": 4,
    "local_groups": 2,
    "external_groups": 2,
    "max_new_tokens": 8,
    "learning_rate": 1e-4,
    "eval_every": 2,
    "eval_items": 2,
    "checkpoint_every": 1,
}


def experiment(arms: list[dict[str, Any]], run: Mapping[str, Any] | None = None, **top: Any) -> Experiment:
    tables = {"name": "e", "nodes": 4, "seeds": [1], "final_items": 2, "final_answers": 4, **top}
    return parse_experiment({**tables, "run": {**RUN, **(run or {})}, "arms": arms})


class Stopped(Exception):
    """Raised by a test in the place of a kill."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer() -> AsyncIterator[Scorer]:
    """One worker for all tests here: it takes a second to start."""
    async with Scorer() as found:
        yield found


@pytest.fixture
def play(scorer: Scorer) -> Play:
    """Runs an arm; with stop_after it is stopped after that round."""

    async def run(found: Experiment, out: Path, stop_after: int = 0, arm: str = "a") -> CompletedRun:
        def tell(progress: RunProgress) -> None:
            if stop_after and progress.round == stop_after:
                raise Stopped

        return await run_arm(found, found.arm(arm), 1, out, scorer, build, tell)

    return run


def build(config: RunConfig) -> Engine:
    return engine_builder(config)(lambda fraction, phrase: None)


@asynccontextmanager
async def open_lone_node(
    scorer: Scorer, folder: Path, run: Mapping[str, Any], excluded: frozenset[str] = frozenset()
) -> AsyncIterator[LabNode]:
    """One node with these settings and no others, to take it through the phases of a round."""
    found = parse_experiment({"name": "e", "nodes": 1, "run": run, "arms": [{"name": "a"}]})
    node = await open_node(found, found.arm("a"), 0, 1, scorer, folder, build, excluded)
    try:
        yield node
    finally:
        await node.close()


def rounds_of(out: Path, node: int, arm: str = "a") -> dict[int, RoundFinished]:
    events = read_only(run_folder(out, arm, 1) / f"node-{node}" / "journal.db", kinds=("round",))
    return {e.round: e for e in events if isinstance(e, RoundFinished)}


def learning(out: Path, node: int, arm: str = "a") -> list[tuple[Any, ...]]:
    """What a node computed, without clocks."""
    return [
        (
            e.round,
            e.reward_local,
            e.reward_batch,
            e.tokens_generated,
            e.loss,
            e.logprob_local,
            {**e.figures, "cpu_s": 0, "verify_s": 0},
        )
        for e in rounds_of(out, node, arm).values()
    ]
