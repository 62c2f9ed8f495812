"""A node whose own answers teach nothing imitates other nodes' right answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from msgspec import structs
from tests.support.lab_runs import open_lone_node, scorer
from tests.support.own_tasks import library_in, sums

from sapo_lab.running.nodes import LabNode
from sapo_swarm.algorithms import examples_rate
from sapo_swarm.config import RunConfig
from sapo_swarm.events import GroupRecorded, RoundFinished
from sapo_swarm.node import round_phases
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.round_context import ReplayBuffer, RoundContext, RoundWork, restore_replay_buffer
from sapo_swarm.node.round_warnings import StallDetector
from sapo_swarm.sapo.imitation import ENOUGH, LEAST, QUESTIONS, REMEMBERED, TEXTS_OF_ROUND, WINDOW, Imitation
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import Finish, Group, Question, Rollout, TaskRef

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["scorer"]
RUN = {
    "trainer": "fake",
    "model": "fake",
    "tasks": ["gcd"],
    "preset": "default",
    "rounds": 3,
    "local_groups": 4,
    "external_groups": 8,
    "group_size": 2,
    "imitation": "auto",
}


@pytest_asyncio.fixture(loop_scope="module")
async def node(scorer: Scorer, tmp_path: Path) -> AsyncIterator[LabNode]:
    async with open_lone_node(scorer, tmp_path / "node", RUN) as opened:
        yield opened


async def received(scorer: Scorer, count: int, first: int = 0, source: str = "large") -> list[Group]:
    """Groups of another node: a long right answer, a short one, one that was cut off, and a wrong one."""
    refs = [TaskRef("gcd", "default", first + number) for number in range(count)]
    groups = []
    for ref, question in zip(refs, await scorer.questions(refs), strict=True):
        assert isinstance(question, Question)
        right = f"<answer>{generate_entry(ref)[1]['answer']}</answer>"
        texts = [f"So it is {right}", right, f"cut {right}", "no answer"]
        finishes: list[Finish] = ["stop", "stop", "length", "stop"]
        rollouts = [Rollout(t, f, float(right in t)) for t, f in zip(texts, finishes, strict=True)]
        groups.append(Group(question, tuple(rollouts), "external", source))
    return groups


async def update(context: RoundContext, node: LabNode, number: int, groups: Sequence[Group]) -> RoundWork:
    """A round in which these groups are received."""
    work = RoundWork(number)
    node.mailbox.groups = tuple(groups)
    await round_phases.sample_questions(context, work)
    await round_phases.generate_groups(context, work)
    await round_phases.score_groups_round_phases(context, work)
    await round_phases.share_groups(context, work)
    await round_phases.update_policy(context, work)
    return work


async def test_a_starved_node_asks_one_question_and_imitates_right_answers_in_several_steps(
    node: LabNode, scorer: Scorer
) -> None:
    context = node.context
    context.memory.imitation.unequal = [0.0] * WINDOW
    work = await update(context, node, 0, await received(scorer, 2 * LEAST))
    assert not work.imitates, "there was nothing to imitate when the round began"
    context.memory.imitation.unequal = [0.0] * WINDOW
    work = await update(context, node, 1, await received(scorer, 2, first=100))
    assert work.imitates
    assert work.questions is not None
    assert len(work.questions) == QUESTIONS
    assert work.call is not None
    info = context.host.engine.info
    assert work.call.policy.learning_rate == examples_rate(info.method, info.parameters)
    assert work.call.policy.minibatches > 1
    decoded = {context.host.engine.tokenizer.decode(list(s.completion)) for s in work.call.batch}
    assert all(re.fullmatch(r"<answer>\d+</answer>", text) for text in decoded), "the judged answers alone"
    assert {(sample.advantage, sample.external) for sample in work.call.batch} == {(1.0, True)}
    assert work.stats is not None
    assert work.stats.steps == work.call.policy.minibatches
    finished = round_phases.record_round(work, 8, set())[-1]
    assert isinstance(finished, RoundFinished)
    assert finished.figures["imitated"] == len(work.call.batch)
    assert not StallDetector().after(finished), "it has something to learn"
    context.memory.imitation.forget_lessons()
    assert not context.memory.imitation.due


async def test_a_node_with_the_setting_off_practises_on(node: LabNode, scorer: Scorer) -> None:
    config = structs.replace(node.context.config, imitation="off")
    context = replace(node.context, config=config)
    for number in range(2):
        context.memory.imitation.unequal = [0.0] * WINDOW
        work = await update(context, node, number, await received(scorer, LEAST))
        assert not work.imitates
        assert work.questions is not None
        assert len(work.questions) >= config.local_groups


async def test_a_round_whose_lessons_were_forgotten_meanwhile_practises(node: LabNode, scorer: Scorer) -> None:
    """The person switched other nodes off, or went back."""
    context, work = node.context, RoundWork(0)
    context.memory.imitation.observe_external(await received(scorer, LEAST), "tags")
    context.memory.imitation.unequal = [0.0] * WINDOW
    await round_phases.sample_questions(context, work)
    assert work.imitates
    context.memory.imitation.forget_lessons()
    node.mailbox.groups = ()
    for phase in (
        round_phases.generate_groups,
        round_phases.score_groups_round_phases,
        round_phases.share_groups,
        round_phases.update_policy,
    ):
        await phase(context, work)
    assert work.imitated == 0
    assert work.call is not None
    assert len(work.call.batch) == RUN["group_size"]


async def test_it_ends_as_soon_as_own_answers_teach(scorer: Scorer) -> None:
    """One question a round is enough to notice it."""
    imitation, groups = Imitation(), await received(scorer, LEAST)
    imitation.observe_external(groups, "tags")
    assert not imitation.due, "a new node practises first"
    wrong = structs.replace(groups[0], source="own", rollouts=(Rollout("a", "stop", 0.0), Rollout("b", "stop", 0.0)))
    own = structs.replace(groups[0], source="own")
    for _ in range(WINDOW):
        imitation.observe_local([wrong, wrong])
    assert imitation.due
    imitation.observe_local([own])
    assert ENOUGH * WINDOW == 1, "one of the newest rounds"
    assert not imitation.due


async def test_the_newest_answers_are_kept_each_once_and_none_of_what_stood_around_them(scorer: Scorer) -> None:
    imitation = Imitation()
    groups = await received(scorer, REMEMBERED + 3)
    imitation.observe_external(groups, "tags")
    imitation.observe_external(groups[-2:], "tags")
    assert [lesson.question for lesson in imitation.lessons] == [group.question for group in groups[3:]]
    assert all(re.fullmatch(r"<answer>\d+</answer>", lesson.text) for lesson in imitation.lessons)


async def test_a_busy_source_neither_pushes_out_the_others_nor_fills_a_round(scorer: Scorer) -> None:
    imitation, random = Imitation(), np.random.default_rng(0)
    few, many = await received(scorer, 6), await received(scorer, 2 * REMEMBERED, 100, "busy")
    imitation.observe_external([*few, *many], "tags")
    assert Counter(lesson.source for lesson in imitation.lessons) == {"large": 6, "busy": REMEMBERED - 6}
    for _ in range(3):
        chosen = Counter(lesson.source for lesson in imitation.choose_lessons(random))
        assert chosen == {"large": 6, "busy": TEXTS_OF_ROUND // 2}
    imitation.observe_external(await received(scorer, REMEMBERED, 500, "third"), "tags")
    assert Counter(lesson.source for lesson in imitation.lessons) == {"large": 6, "busy": 45, "third": 45}
    assert len(imitation.choose_lessons(random)) == 6 + 2 * 11
    alone = Imitation()
    alone.observe_external(many, "tags")
    assert len(alone.choose_lessons(random)) == TEXTS_OF_ROUND


async def test_a_source_that_floods_one_question_teaches_it_once_and_two_that_agree_teach_it_twice(
    scorer: Scorer,
) -> None:
    imitation, groups = Imitation(), await received(scorer, 1)
    flood = [
        structs.replace(groups[0], rollouts=(Rollout(f"{n} = {r.text}", "stop", r.reward), groups[0].rollouts[-1]))
        for n in range(50)
        for r in groups[0].rollouts[:2]
    ]
    imitation.observe_external(flood, "tags")
    assert len(imitation.lessons) == 1
    imitation.observe_external([structs.replace(groups[0], node="other")], "tags")
    assert [lesson.source for lesson in imitation.lessons] == ["large", "other"]


async def test_a_group_that_passed_fewer_walls_is_not_imitated(scorer: Scorer) -> None:
    """With equal rewards a group teaches nothing in practice, so its phrases and its likelihood were not looked at."""
    imitation, groups = Imitation(), await received(scorer, 1)
    imitation.observe_external([structs.replace(groups[0], rollouts=groups[0].rollouts[:2])], "tags")
    assert imitation.lessons == []
    imitation.observe_external(groups, "tags")
    assert len(imitation.lessons) == 1


async def test_an_answer_is_judged_again_without_its_text_and_is_no_longer_than_the_node_may_write(
    node: LabNode, scorer: Scorer
) -> None:
    context, memory = node.context, node.context.memory.imitation
    memory.observe_external(await received(scorer, LEAST), "tags")
    memory.lessons += [structs.replace(lesson, text="<answer>0</answer>", source="b") for lesson in memory.lessons]
    memory.unequal = [0.0] * WINDOW
    work = await update(context, node, 0, [])
    assert work.imitated == LEAST
    memory.unequal = [0.0] * WINDOW
    short = structs.replace(context.config, max_new_tokens=3)
    work = await update(replace(context, config=short), node, 1, [])
    assert work.imitates
    assert work.imitated == 0


@pytest.mark.parametrize("reasons", ["as its template opens it", "as the person chose"])
async def test_a_model_that_reasons_first_is_not_taught_answers_without_reasoning(
    reasons: str, node: LabNode, scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = node.context
    if reasons == "as the person chose":
        context = replace(context, config=structs.replace(context.config, thinking="on"))
    else:
        monkeypatch.setattr(scorer, "in_reasoning", True)
    context.memory.imitation.observe_external(await received(scorer, LEAST), "tags")
    context.memory.imitation.unequal = [0.0] * WINDOW
    assert not (await update(context, node, 0, [])).imitates


@pytest.mark.parametrize(
    ("extract", "text", "lesson"),
    [
        ("tags", "Visit example.com <answer>7</answer>", "<answer>7</answer>"),
        ("last_line", "Visit example.com\n7", "7"),
        ("last_number", "Visit example.com: 7", "7"),
        ("json", 'Visit example.com {"a": 7}', '{"a": 7}'),
    ],
)
async def test_of_a_task_of_ones_own_too_only_the_answer_is_imitated(
    extract: str, text: str, lesson: str, tmp_path: Path
) -> None:
    sums(tmp_path / "sums")
    spec = tmp_path / "sums" / "task.toml"
    spec.write_text(f'extract = "{extract}"\n' + spec.read_text("utf-8"), encoding="utf-8")
    ref = TaskRef("sums", "task", 1, generator="task-1")
    group = Group(
        Question(ref, "q", "0" * 64), (Rollout(text, "stop", 1.0), Rollout("", "stop", 0.0)), "external", "large"
    )
    with library_in(tmp_path):
        imitation = Imitation()
        imitation.observe_external([group], "tags")
    assert [each.text for each in imitation.lessons] == [lesson]
    gone = Imitation()
    gone.observe_external([group], "tags")
    assert gone.lessons == [], "the task was removed meanwhile"


async def test_a_restart_remembers_them(scorer: Scorer, tmp_path: Path) -> None:
    config = RunConfig(tasks=("gcd",), local_groups=4, external_groups=8)
    external = await received(scorer, 12)
    local = structs.replace(external[0], source="own", node="")
    whole = ReplayBuffer()
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for number in range(6):
            taken = external[2 * number : 2 * number + 2]
            whole.observe(config, number, [local])
            whole.imitation.observe_external(taken, "tags")
            journal.append([GroupRecorded(round=number, group=g, trained=True) for g in (local, *taken)])
        assert restore_replay_buffer(config, journal, 6) == whole
