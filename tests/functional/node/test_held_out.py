"""Held-out questions: never trained on, never asked twice as if they were new, and an account of them that may be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sapo_backends.base import Engine
from sapo_desktop.services.machine.engines import builder
from sapo_lab.running.nodes import LabNode, open_node
from sapo_lab.schema import parse
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.node.evaluation.evaluate import Examiner
from sapo_swarm.node.evaluation.held_out_exclusion import IN_ALL, KEPT_APART, held_out_exclusion
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.phases import RoundContext, ask
from sapo_swarm.scoring.scorer import Scorer

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASK = "binary_matrix"
RUN = {
    "trainer": "fake",
    "model": "fake",
    "tasks": [TASK],
    "preset": "starter",
    "local_groups": 32,
    "rounds": 1,
    "eval_items": 8,
}


def build(config: RunConfig) -> Engine:
    return builder(config)(lambda fraction, phrase: None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer() -> AsyncIterator[Scorer]:
    async with Scorer() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def node(scorer: Scorer, tmp_path: Path) -> AsyncIterator[LabNode]:
    experiment = parse({"name": "e", "nodes": 1, "run": RUN, "arms": [{"name": "a"}]})
    apart = await held_out_exclusion(scorer, (TASK,), "starter")
    found = await open_node(experiment, experiment.arm("a"), 0, 1, scorer, tmp_path / "node", build, apart)
    yield found
    await found.close()


async def _asked(context: RoundContext, rounds: int) -> set[str]:
    found: set[str] = set()
    for number in range(rounds):
        work = RoundWork(number)
        await ask(context, work)
        assert work.questions is not None
        assert len(work.questions) == context.config.local_groups
        found |= {question.prompt_sha256 for question in work.questions}
    return found


async def test_a_question_that_is_held_out_is_not_trained_on_though_a_training_seed_draws_it(node: LabNode) -> None:
    apart = node.context.apart
    assert 300 < len(apart) <= KEPT_APART
    assert await _asked(replace(node.context, apart=frozenset()), 10) & apart, "the task is small enough to draw some"
    assert not await _asked(node.context, 10) & apart


async def test_many_tasks_keep_fewer_questions_each_apart(scorer: Scorer) -> None:
    assert len(await held_out_exclusion(scorer, (TASK,) * 80, "starter")) <= IN_ALL // 80
    assert await held_out_exclusion(scorer, ("zebra_puzzles",), "starter") == frozenset(), (
        "a minute to draw, and never drawn again"
    )


async def test_a_closer_look_asks_what_neither_the_evaluation_nor_an_earlier_look_asked(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    config = node.context.config
    examiner = Examiner(config, node.host, scorer, tmp_path)
    first = await examiner.fresh(2, 0, lambda part: None)
    second = await examiner.fresh(2, len(first), lambda part: None)
    regular = set(held_out_items(config.tasks, config.preset, config.eval_items))
    looks = [{result.ref for result in some} for some in (first, second)]
    assert len(looks[0] | looks[1] | regular) == len(looks[0]) + len(looks[1]) + len(regular)


@pytest.mark.parametrize("content", [b"", b'[{"ref"'], ids=["empty", "cut off"])
async def test_an_account_of_the_untrained_model_that_was_cut_off_is_as_if_it_had_not_been_measured(
    node: LabNode, scorer: Scorer, tmp_path: Path, content: bytes
) -> None:
    examiner = Examiner(node.context.config, node.host, scorer, tmp_path)
    (tmp_path / "base.json").write_bytes(content)
    assert not examiner.has_base()
    assert (await examiner.examine(25, 4, lambda part: None)).delta is None
    await examiner.examine(0, 4, lambda part: None)
    assert examiner.has_base()
    assert (await examiner.examine(25, 4, lambda part: None)).delta is not None
