"""The untrained model is asked beside training where its engine keeps it at hand: nobody waits for it, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import CALM, CONFIG, follow, make

from sapo_backends.base import LoadRequest
from sapo_backends.errors import BackendError
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import BaseAsked, Evaluated, Event, ExamplesRead, LogLine, Phase, RoundFinished, TrialMeasured
from sapo_swarm.node import evaluation
from sapo_swarm.node.base_trial import StoredTrials
from sapo_swarm.node.evaluation import BaseAnswers, evaluation_conditions
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

pytestmark = pytest.mark.timeout(120)
BESIDE = msgspec.structs.replace(CONFIG, eval_every=3, eval_items=24, rounds=6)
"""48 held-out questions; with a fast engine the base is through with them before the sixth round."""
UNTAUGHT = msgspec.structs.replace(CONFIG, model="untaught", tasks=("moods",), rounds=3, eval_every=25)


@pytest.fixture(autouse=True)
def _tasks(tmp_path: Path) -> Iterator[None]:
    rows = [{"question": f"Judge letter {n}.", "answer": "No" if n % 5 else "Yes"} for n in range(100)]
    write_folder(tmp_path / "tasks" / "moods", '[[verifier]]\nkind = "exact"\n', rows[:80], rows[80:])
    with library_in(tmp_path / "tasks"):
        yield


def keeping(**more: Any) -> FakeEngine:
    """An engine that trains beside the table it began with."""
    return FakeEngine(LoadRequest("fake", method="lora", **more))


async def run(folder: Path, config: RunConfig, engine: FakeEngine | None = None) -> list[Event]:
    """Every event of a node that ran to its end."""
    seen: list[Event] = []
    await follow(make(folder, engine or keeping(), config), seen.append)
    return seen


def answers(folder: Path, config: RunConfig, temperature: float) -> dict[Any, Any]:
    now = evaluation_conditions(config, keeping().info)
    path = folder / "evaluations" / "base.json"
    return BaseAnswers(path, lambda _task: config.max_new_tokens, now).known(temperature)


async def test_the_first_round_waits_for_no_evaluation_and_the_base_is_compared_all_the_same(tmp_path: Path) -> None:
    seen = await run(tmp_path / "run", BESIDE)
    kinds = [type(e) for e in seen if isinstance(e, RoundFinished | BaseAsked | Evaluated)]
    assert kinds[:2] == [RoundFinished, BaseAsked]
    asked = [e for e in seen if isinstance(e, BaseAsked)]
    assert [e.answered for e in asked] == sorted({e.answered for e in asked})
    assert (asked[-1].answered, asked[-1].items) == (48, 48)
    at_round = {e.round: e for e in seen if isinstance(e, Evaluated) and not e.belated}
    assert set(at_round) == {3, 6}
    newest = [e for e in seen if isinstance(e, Evaluated)][-1]
    assert newest.base_missing == 0
    assert newest.delta is not None
    assert newest.greedy is not None
    assert newest.greedy.delta is not None


async def test_from_the_start_of_a_slice_the_phase_says_how_many_questions_the_base_has_answered(
    tmp_path: Path,
) -> None:
    seen = await run(tmp_path / "run", BESIDE)
    phases = [e for e in seen if isinstance(e, Phase) and e.phase == "evaluate" and "untrained" in e.detail]
    answered = [0, *(e.answered for e in seen if isinstance(e, BaseAsked))]
    words = "The untrained model answers held-out questions: {} of 48"
    assert {words.format(count) for count in answered} <= {e.detail for e in phases}
    assert all(e.detail == words.format(round(48 * e.fraction)) for e in phases if e.fraction < 1)


async def test_what_the_base_answers_in_slices_is_what_it_answers_at_once_before_training(tmp_path: Path) -> None:
    """The same questions, the same random numbers, the untrained weights: for both temperatures the verdicts are equal."""
    await run(tmp_path / "beside", BESIDE)
    alone = msgspec.structs.replace(BESIDE, rounds=1)
    full = FakeEngine(LoadRequest("fake"))
    full.info = keeping().info
    await run(tmp_path / "before", alone, full)
    for temperature in (1.0, 0.0):
        beside, before = (answers(tmp_path / name, BESIDE, temperature) for name in ("beside", "before"))
        assert len(beside) == 48
        verdicts = {ref: result.correct for ref, result in beside.items()}
        assert verdicts == {ref: result.correct for ref, result in before.items()}
    trained = [e for e in read_only(tmp_path / "beside" / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]
    base = next(e for e in trained if not e.round)
    assert base.belated
    assert base.pass_at_1 == sum(r.rate for r in answers(tmp_path / "before", BESIDE, 1.0).values()) / 48


async def test_a_result_before_the_base_is_through_is_compared_on_what_both_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And published again, without asking anything, once it is."""
    monkeypatch.setattr(evaluation, "FIRST_SLICE", 24)
    monkeypatch.setattr(evaluation, "BASE_SHARE", 1e-9)
    seen = await run(tmp_path / "run", msgspec.structs.replace(BESIDE, rounds=3))
    first, again = (e for e in seen if isinstance(e, Evaluated) and e.round == 3)
    assert not first.belated
    assert first.delta is None
    assert first.base_missing == 24
    assert first.so_far is not None
    assert first.so_far.items == 24
    assert first.so_far.now - first.so_far.base == pytest.approx(first.so_far.delta)
    assert first.so_far.low <= first.so_far.delta <= first.so_far.high
    assert again.belated
    assert (again.pass_at_1, again.items, again.base_missing) == (first.pass_at_1, first.items, 0)
    assert again.delta is not None
    assert again.seconds == 0.0


async def test_the_first_questions_are_about_all_tasks_alike(tmp_path: Path) -> None:
    await run(tmp_path / "run", msgspec.structs.replace(BESIDE, rounds=1, eval_every=25))
    first = list(answers(tmp_path / "run", BESIDE, 1.0))[:8]
    assert sorted(ref.dataset for ref in first) == ["basic_arithmetic"] * 4 + ["calendar_arithmetic"] * 4


class Killed(BaseException):
    """Ends the process as a kill does: nothing handles it."""


async def test_a_kill_in_the_middle_of_a_slice_loses_that_slice_alone(tmp_path: Path) -> None:
    engine, asked = keeping(), []
    untrained = engine.untrained

    def third() -> Any:
        asked.append(1)
        if len(asked) > 3:  # a slice is one call at either temperature
            raise Killed
        return untrained()

    engine.untrained = third  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the task group may wrap it
        await run(tmp_path / "run", BESIDE, engine)
    assert len(answers(tmp_path / "run", BESIDE, 1.0)) == evaluation.FIRST_SLICE
    seen = await run(tmp_path / "run", BESIDE)
    later = [e for e in seen if isinstance(e, BaseAsked)]
    assert later[1].answered > evaluation.FIRST_SLICE
    assert later[-1].answered == 48
    assert len(answers(tmp_path / "run", BESIDE, 0.0)) == 48


async def test_a_pause_in_a_slice_keeps_its_answers_for_the_next_one(tmp_path: Path) -> None:
    node = make(tmp_path / "run", keeping(), BESIDE)
    paused: list[Event] = []
    engine: Any = node.setup.build(lambda *_: None)
    untrained, calls = engine.untrained, []

    def interrupting() -> Any:
        calls.append(1)
        if len(calls) == 2:  # at temperature 0, when the sampled answers are there
            node.host.cancel.cancel()
        return untrained()

    engine.untrained = interrupting
    await follow(node, paused.append)
    assert len(answers(tmp_path / "run", BESIDE, 0.0)) == 48
    assert not [e for e in paused if isinstance(e, LogLine) and e.level != "info"]


async def test_a_base_that_gives_no_answers_is_given_up_and_training_goes_on(tmp_path: Path) -> None:
    engine = keeping()

    def broken() -> Any:
        raise BackendError("Broken.")

    engine.untrained = broken  # type: ignore[method-assign]
    seen = await run(tmp_path / "run", BESIDE, engine)
    lines = [e.text for e in seen if isinstance(e, LogLine) and e.level == "error"]
    assert len(lines) == 1
    assert lines[0].startswith("The untrained model's held-out evaluation was given up and training goes on")
    assert sum(isinstance(e, RoundFinished) for e in seen) == BESIDE.rounds
    newest = [e for e in seen if isinstance(e, Evaluated)][-1]
    assert (newest.delta, newest.base_missing) == (None, 48)


async def test_slices_take_their_share_of_the_time_and_no_more(tmp_path: Path) -> None:
    """Until the end: then what is left is asked at once."""
    engine = keeping()
    engine._latency = 0.002
    config = msgspec.structs.replace(BESIDE, eval_items=64, rounds=4, local_groups=2, max_new_tokens=12, eval_every=25)
    seen = await run(tmp_path / "run", config, engine)
    learned = spent = 0.0
    for event in seen:
        if isinstance(event, RoundFinished):
            learned += sum(event.seconds.values())
        if isinstance(event, BaseAsked) and event.round < config.rounds:
            assert spent <= evaluation.BASE_SHARE * learned * 1.5, (
                "it began while there was room; rounds cost more than phases"
            )
            spent += event.seconds
    assert [e.answered for e in seen if isinstance(e, BaseAsked)][-1] == 128


async def test_examples_come_first_and_the_result_is_measured_before_the_run_is_finished(tmp_path: Path) -> None:
    """A run that needs no practice pauses; by then the base has answered everything."""
    rows = [{"question": f"Judge letter {n}.", "answer": "No"} for n in range(100)]
    write_folder(tmp_path / "tasks" / "plain", '[[verifier]]\nkind = "exact"\n', rows[:80], rows[80:])
    config = msgspec.structs.replace(UNTAUGHT, tasks=("plain",), rounds=0, temperature=0.01)
    node = make(tmp_path / "run", keeping(), config)
    seen: list[Event] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if getattr(event, "reason", "") == "done":
            node.command("stop")

    await follow(node, watch)
    order = [e for e in seen if isinstance(e, TrialMeasured | RoundFinished | BaseAsked | ExamplesRead | Evaluated)]
    assert [type(e) for e in order[:2]] == [TrialMeasured, RoundFinished]
    newest = [e for e in seen if isinstance(e, Evaluated)][-1]
    assert newest.round > 0
    assert newest.delta is not None
    assert newest.base_missing == 0


async def test_a_base_that_was_tried_before_is_not_tried_again(tmp_path: Path) -> None:
    """Neither after `tasks new` nor by a second model of the same base; another table, or other weights, are."""
    model = ["first"]

    def make_node(folder: Path, config: RunConfig) -> Node:
        trials = StoredTrials(tmp_path / "trials", lambda: model[0], "1")
        return Node(NodeSetup(config, "tried", folder, lambda _: keeping(), lambda: CALM, trials=trials))

    async def trial_of(name: str, config: RunConfig = UNTAUGHT) -> TrialMeasured:
        seen: list[TrialMeasured] = []
        node = make_node(tmp_path / name, config)

        def watch(event: Event) -> None:
            if isinstance(event, TrialMeasured):
                seen.append(event)
                node.command("stop")

        await follow(node, watch)
        return seen[0]

    first, second = await trial_of("a"), await trial_of("b")
    assert first.tried_at == 0.0
    assert second.tried_at == pytest.approx(first.time, abs=30)
    names = ("questions", "answers", "right", "unequal", "truncated", "plan", "examples", "limits")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    model[0] = "other weights"
    assert (await trial_of("c")).tried_at == 0.0
    assert (await trial_of("d", msgspec.structs.replace(UNTAUGHT, max_new_tokens=48))).tried_at == 0.0
    rows = [{"question": f"Judge letter {n}.", "answer": "Yes"} for n in range(100)]
    shutil.rmtree(tmp_path / "tasks" / "moods")
    write_folder(tmp_path / "tasks" / "moods", '[[verifier]]\nkind = "exact"\n', rows[:80], rows[80:])
    with library_in(tmp_path / "tasks"):  # as the next process reads it
        assert (await trial_of("e")).tried_at == 0.0, "the table has changed"
        assert (await trial_of("f")).tried_at > 0.0


async def test_a_trial_that_takes_too_long_says_what_it_did_not_ask(tmp_path: Path) -> None:
    """Answers that go on to a high limit: those that were begun are counted as unfinished, and examples come first."""
    engine = keeping()
    engine._latency = 0.05
    policy: Any = engine._policy
    policy.table[:, :, 512:] = -60.0  # neither an answer nor an end: every answer would have 2,000 tokens
    policy.table[:, :, 256:512] = -60.0
    config = msgspec.structs.replace(UNTAUGHT, max_new_tokens=2000, rounds=0, examples="only", eval_every=0)
    node = make(tmp_path / "run", engine, config)
    node.examples._measuring.most_seconds = 0.5
    seen: list[Event] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TrialMeasured):
            node.command("stop")

    await follow(node, watch)
    (trial,) = (e for e in seen if isinstance(e, TrialMeasured))
    assert trial.unfinished == trial.answers > 0
    assert trial.truncated == 0
    assert trial.left_out > 0
    assert f"{trial.left_out} of {trial.questions + trial.left_out} questions left out" in trial.sentence
    assert f"{trial.unfinished} answers unfinished" in trial.sentence
    assert trial.plan == "only"
