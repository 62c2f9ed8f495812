"""Held-out questions: never trained on, never asked twice as if they were new, and an account of them that may be lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import json, structs
from tests.support.lab_runs import open_lone_node, scorer
from tests.support.own_tasks import library_in, sums
from tests.support.watched_node import CONFIG, CountingEngine, make

from sapo_desktop.services.against_base import unpaired_reason
from sapo_lab.running.nodes import LabNode
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import ItemResult, eval_items, held_out_items
from sapo_swarm.events import Evaluated, decode_event, encode_event
from sapo_swarm.node.evaluation import EXCLUDED_PER_TASK, FEW, IN_ALL, Evaluator, beyond_exclusion, held_out_exclusion
from sapo_swarm.node.guard import RollbackGuard
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.round_phases import NoQuestions, RoundContext, RoundWork, candidate_refs, sample_questions
from sapo_swarm.node.setup import SILO
from sapo_swarm.sapo.held_out_tripwire import STEPS
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Question

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["scorer"]
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

NOT_USED: dict[str, Any] = dict.fromkeys(("checkpoints", "exchange", "journal", "bus", "save"))


@pytest_asyncio.fixture(loop_scope="module")
async def node(scorer: Scorer, tmp_path: Path) -> AsyncIterator[LabNode]:
    excluded = await held_out_exclusion(scorer, (TASK,), "starter")
    async with open_lone_node(scorer, tmp_path / "node", RUN, excluded) as found:
        yield found


async def _asked(context: RoundContext, rounds: int) -> set[str]:
    found: set[str] = set()
    for number in range(rounds):
        work = RoundWork(number)
        await sample_questions(context, work)
        assert work.questions is not None
        assert len(work.questions) == context.config.local_groups
        found |= {question.prompt_sha256 for question in work.questions}
    return found


async def test_a_question_that_is_held_out_is_not_trained_on_though_a_training_seed_draws_it(node: LabNode) -> None:
    excluded = node.context.excluded
    assert 300 < len(excluded) <= EXCLUDED_PER_TASK
    assert await _asked(replace(node.context, excluded=frozenset()), 10) & excluded, (
        "the task is small enough to draw some"
    )
    assert not await _asked(node.context, 10) & excluded


async def test_a_round_whose_task_leaves_out_a_third_of_its_questions_is_filled_whatever_the_seed(
    node: LabNode, scorer: Scorer
) -> None:
    """With this seed one of its 32 places needs more than eight tries."""
    config = structs.replace(node.context.config, tasks=("prime_factorization",), seed=222)
    excluded = await held_out_exclusion(scorer, config.tasks, "starter")
    await _asked(replace(node.context, config=config, node_key="silo-222", swarm=SILO, excluded=excluded), 1)


async def test_a_round_with_too_few_questions_says_how_many_were_left_out_for_what(
    node: LabNode, scorer: Scorer
) -> None:
    room = node.host.engine.info.context_length
    config = structs.replace(node.context.config, local_groups=2, max_new_tokens=room)
    refs = candidate_refs(config, node.context.node_key, node.context.swarm, 0)
    tried = await scorer.questions(list(itertools.islice(refs, 64)))
    held_out = frozenset(question.prompt_sha256 for question in tried[:30] if isinstance(question, Question))
    counts = Counter(isinstance(q, Question) and q.prompt_sha256 in held_out for q in tried)
    said = f"Only 0 of 2 .* Of 64 that were tried {counts[True]} are held out, {counts[False]} do not fit into {room} tokens"
    with pytest.raises(NoQuestions, match=said):
        await _asked(replace(node.context, config=config, excluded=held_out), 1)


@pytest.mark.parametrize("task", [name.split("/")[0] for name in FEW])
async def test_of_a_task_with_few_questions_half_are_left_out_and_half_can_be_trained_on(
    task: str, node: LabNode, scorer: Scorer
) -> None:
    excluded = await held_out_exclusion(scorer, (task,), "starter")
    config = structs.replace(node.context.config, tasks=(task,), local_groups=8)
    context = replace(node.context, config=config, excluded=excluded)
    refs = candidate_refs(config, context.node_key, context.swarm, 0)
    made = await scorer.questions(list(itertools.islice(refs, 1000)))
    every = {question.prompt_sha256 for question in made if isinstance(question, Question)}
    assert 0.4 < len(every & excluded) / len(every) <= 0.5
    assert not await _asked(context, 1) & excluded


async def test_many_tasks_keep_fewer_questions_each_apart(scorer: Scorer) -> None:
    assert len(await held_out_exclusion(scorer, (TASK,) * 80, "starter")) <= IN_ALL // 80
    assert await held_out_exclusion(scorer, ("zebra_puzzles",), "starter") == frozenset(), (
        "a minute to draw, and never drawn again"
    )


async def test_questions_that_training_may_have_asked_are_counted() -> None:
    def beyond(trained: tuple[str, ...], asked: int, preset: str = "starter", task: str = TASK) -> int:
        return beyond_exclusion(held_out_items((task,), preset, asked), trained, "starter")

    assert beyond((TASK,), EXCLUDED_PER_TASK) == 0
    assert beyond((TASK,), EXCLUDED_PER_TASK + 7) == 7
    assert beyond((TASK,) * 80, EXCLUDED_PER_TASK) == EXCLUDED_PER_TASK - IN_ALL // 80, "each of many tasks keeps fewer"
    assert beyond(("tower_of_hanoi",), 100, task="tower_of_hanoi") == 40, "half of its few questions are"
    assert beyond((TASK,), 5, "paper") == 5, "those of another preset are not left out"
    assert beyond(("basic_arithmetic",), 500) == 0, "never trained on"
    assert beyond(("zebra_puzzles",), 500, task="zebra_puzzles") == 0, "never drawn again"


async def test_a_closer_look_asks_what_neither_the_evaluation_nor_an_earlier_look_asked(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    config = node.context.config
    examiner = Evaluator(config, node.host, scorer, tmp_path)
    first = await examiner.fresh(2, 0, 0, lambda part: None)
    second = await examiner.fresh(2, len(first), 0, lambda part: None)
    regular = set(held_out_items(config.tasks, config.preset, config.eval_items))
    looks = [{result.ref for result in some} for some in (first, second)]
    assert len(looks[0] | looks[1] | regular) == len(looks[0]) + len(looks[1]) + len(regular)


async def test_a_closer_look_asks_no_question_twice_where_a_task_of_ones_own_runs_out_of_rows(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    """And of the other task it goes on asking as many as ever."""
    sums(tmp_path / "sums", held_out=20)
    with library_in(tmp_path):
        config = structs.replace(node.context.config, tasks=("sums", TASK))
        examiner = Evaluator(config, node.host, scorer, tmp_path)
        seen, counts = held_out_items(config.tasks, config.preset, config.eval_items), []
        for factor in STEPS:
            seen += (fresh := examiner.fresh_questions(factor, len(seen) - 2 * config.eval_items))
            counts.append((sum(ref.dataset == "sums" for ref in fresh), sum(ref.dataset == TASK for ref in fresh)))
    assert len({*seen}) == len(seen)
    assert counts == [(8, 8), (4, 8), (0, 16), (0, 32), (0, 64), (0, 128)]


@pytest.mark.parametrize(
    ("lost", "rows", "verdict", "questions"),
    [(14, 20, "harm", 12), (5, 20, "open", 12), (5, 8, "open", 0)],
    ids=["all lost", "few lost", "no fresh rows"],
)
async def test_a_closer_look_ends_with_the_rows_and_does_not_say_that_nothing_fell(
    lost: int, rows: int, verdict: str, questions: int, node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    sums(tmp_path / "sums", held_out=rows)
    config = structs.replace(node.context.config, tasks=("sums",), external_groups=1)

    class Answers(Evaluator):
        """The best checkpoint is right everywhere, the present weights are not at the first `lost` questions."""

        async def fresh(self, factor: int, asked: int, weights: object, on_progress: object) -> list[ItemResult]:
            return [
                ItemResult(ref, (place >= lost,), (True,), (False,))
                for place, ref in enumerate(self.fresh_questions(factor, asked))
            ]

        def answered(self, factor: int, asked: int, weights: object) -> list[ItemResult]:
            return [ItemResult(ref, (True,), (True,), (False,)) for ref in self.fresh_questions(factor, asked)]

    with library_in(tmp_path):
        examiner: Any = Answers(config, node.host, scorer, tmp_path)
        guard = RollbackGuard(config, node.host, examiner=examiner, in_swarm=True, **NOT_USED)
        before, after, found = await guard._compared(tmp_path, 9, 0, lambda part: None)
    assert (found, len(before), len(after)) == (verdict, questions, questions)
    assert "neither be seen nor ruled out" in RollbackGuard._cleared(9, "open", "figures").sentence
    assert "no fall of a third or more was found" in RollbackGuard._cleared(9, "chance", "figures").sentence


async def test_an_evaluation_with_an_item_that_does_not_regenerate_marks_the_best_checkpoint(tmp_path: Path) -> None:
    """Item 77 of base_conversion under "paper" has no answer that can be written."""
    config = structs.replace(
        CONFIG, tasks=("base_conversion",), preset="paper", eval_every=1, eval_items=78, local_groups=1, rounds=1
    )
    node = make(tmp_path, CountingEngine(), config)
    await node.run()
    found = [e for e in read_only(tmp_path / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]
    assert [(e.items, e.asked) for e in found] == [(77, 78)] * 2
    assert node.guard is not None
    assert node.guard.watch.best is not None
    assert node.store.checkpoints.pinned == (node.guard.watch.best.round,)


@pytest.mark.parametrize("content", [b"", b'[{"ref"'], ids=["empty", "cut off"])
async def test_an_account_of_the_untrained_model_that_was_cut_off_is_as_if_it_had_not_been_measured(
    node: LabNode, scorer: Scorer, tmp_path: Path, content: bytes
) -> None:
    examiner = Evaluator(node.context.config, node.host, scorer, tmp_path)
    (tmp_path / "base.json").write_bytes(content)
    assert len(await examiner.base_missing()) == 8
    alone = await examiner.examine(25, 8, lambda part: None)
    assert alone.delta is None
    assert "has not answered 8 of these questions" in unpaired_reason(alone)
    await examiner.examine(0, 8, lambda part: None)
    assert await examiner.base_missing() == []
    assert (await examiner.examine(25, 8, lambda part: None)).delta is not None


async def test_other_tasks_leave_what_the_base_answered_and_ask_it_the_rest(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    config = node.context.config
    examiner = Evaluator(config, node.host, scorer, tmp_path)
    await examiner.examine(0, config.eval_items, lambda part: None)
    more = Evaluator(structs.replace(config, tasks=(TASK, "basic_arithmetic")), node.host, scorer, tmp_path)
    missing = await more.base_missing()
    assert [ref.dataset for ref in missing] == ["basic_arithmetic"] * config.eval_items
    await more.ask_base(missing, lambda part: None)
    assert await more.base_missing() == await examiner.base_missing() == []
    scores = (await more.examine(25, config.eval_items, lambda part: None)).tasks
    assert all(score.base is not None for score in scores)


async def test_an_evaluation_asks_every_question_sampled_and_greedily_and_pairs_both_with_the_base(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    examiner = Evaluator(node.context.config, node.host, scorer, tmp_path)
    parts: list[float] = []
    first = await examiner.examine(0, 8, parts.append)
    assert parts == [0.5, 1.0], "one progress of both"
    assert first.greedy is not None
    assert (first.greedy.items, first.greedy.delta, first.greedy.base_missing) == (8, None, 0)
    later = await examiner.examine(25, 8, parts.append)
    assert later.greedy is not None
    assert (later.greedy.delta, later.greedy.pass_at_1) == (0.0, first.greedy.pass_at_1), "the likeliest answer is one"
    assert [score.base for score in later.greedy.tasks] == [first.greedy.pass_at_1]
    assert decode_event(encode_event(later)) == later


async def test_the_account_of_a_version_that_asked_at_temperature_1_only_is_kept_and_the_rest_asked(
    node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    examiner = Evaluator(node.context.config, node.host, scorer, tmp_path)
    await examiner.examine(0, 8, lambda part: None)
    account = json.decode((tmp_path / "base.json").read_bytes())
    sampled = account["results"]
    del account["greedy"]
    (tmp_path / "base.json").write_bytes(json.encode(account))
    alone = await examiner.examine(25, 8, lambda part: None)
    assert alone.greedy is not None
    assert (alone.delta is None, alone.greedy.delta, alone.greedy.base_missing) == (False, None, 8)
    missing = await examiner.base_missing()
    assert len(missing) == 8
    parts: list[float] = []
    await examiner.ask_base(missing, parts.append)
    assert parts == [1.0], "at one temperature only"
    account = json.decode((tmp_path / "base.json").read_bytes())
    assert (account["results"], len(account["greedy"])) == (sampled, 8)
    assert await examiner.base_missing() == []


async def test_a_journal_from_before_greedy_evaluations_is_read() -> None:
    line = (
        b'{"kind":"evaluation","round":25,"temperature":1.0,"items":8,"pass_at_1":0.5,"low":0.2,"high":0.8,"delta":null,'
        b'"delta_low":null,"delta_high":null,"tasks":[],"seconds":1.0}'
    )
    event = decode_event(line)
    assert isinstance(event, Evaluated)
    assert event.greedy is None


@pytest.mark.parametrize(
    ("tasks", "each"), [(1, 64), (2, 32), (4, 16), (9, 16), (20, 7), (400, 1)], ids=lambda value: str(value)
)
async def test_unless_it_is_set_the_items_of_a_task_follow_the_number_of_tasks(tasks: int, each: int) -> None:
    names = tuple(f"task{number}" for number in range(tasks))
    assert eval_items(RunConfig(tasks=names)) == each
    assert eval_items(RunConfig(tasks=names, eval_items=5)) == 5


OTHERWISE = {
    "another token limit": ({"max_new_tokens": 192}, {}),
    "reasoning first": ({"thinking": "on"}, {}),
    "another answer format": ({"answer_format": "boxed"}, {}),
    "another judge": ({"judge_model": "stricter"}, {}),
    "another generator": ({}, {"backend": "llamacpp+fake"}),
    "another precision": ({}, {"precision": "4bit"}),
}


@pytest.mark.parametrize(("settings", "engine"), OTHERWISE.values(), ids=OTHERWISE)
async def test_what_the_base_answered_under_other_conditions_is_asked_again(
    settings: dict[str, object],
    engine: dict[str, str],
    node: LabNode,
    scorer: Scorer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the effect of a changed setting would be shown as learnt."""
    config = node.context.config
    await Evaluator(config, node.host, scorer, tmp_path).examine(0, config.eval_items, lambda part: None)
    assert await Evaluator(structs.replace(config, thinking="off"), node.host, scorer, tmp_path).base_missing() == []
    monkeypatch.setattr(node.host.engine, "info", replace(node.host.engine.info, **engine))
    other = Evaluator(structs.replace(config, **settings), node.host, scorer, tmp_path)
    assert len(await other.base_missing()) == config.eval_items
    assert (await other.examine(25, config.eval_items, lambda part: None)).delta is None
    await other.examine(0, config.eval_items, lambda part: None)
    assert (await other.examine(25, config.eval_items, lambda part: None)).delta is not None


@pytest.mark.parametrize("whole", [True, False], ids=["without conditions", "a list alone"])
async def test_an_account_that_does_not_say_its_conditions_is_read_and_the_base_asked_again(
    whole: bool, node: LabNode, scorer: Scorer, tmp_path: Path
) -> None:
    config = node.context.config
    examiner = Evaluator(config, node.host, scorer, tmp_path)
    await examiner.examine(0, config.eval_items, lambda part: None)
    account = json.decode((tmp_path / "base.json").read_bytes())
    del account["conditions"]
    (tmp_path / "base.json").write_bytes(json.encode(account if whole else account["results"]))
    assert len(await examiner.base_missing()) == config.eval_items
