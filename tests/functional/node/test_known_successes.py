"""Known successes as examples: a task without answers of its own, and what a person, the model and other nodes wrote to it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.model_folder import on_disk, weights
from tests.support.node_process import node, reaches, sapo
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import CALM, CONFIG, follow

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeEngine
from sapo_swarm.events import Event, ExamplesRead, GroupRecorded, RoundFinished, TrialMeasured
from sapo_swarm.node import examples_phase
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.known_successes import (
    KnownSuccess,
    WrittenAnswer,
    collect_candidates,
    keep_written,
    verify_candidates,
)
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.node.verified_examples import ExampleSource
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import generator_of, preset_of
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Group, Question, Rollout, TaskRef

TEXT = "<answer>Yes</answer>"
UNTAUGHT = msgspec.structs.replace(CONFIG, model="untaught", tasks=("oaths",), rounds=2)
TAKING = msgspec.structs.replace(UNTAUGHT, external_groups=2)
"""A node that takes groups of others; alone it meets none but those that its journal holds."""


def oaths(folder: Path, word: str = "Yes") -> None:
    """A task that judges by a pattern: its rows hold no answers, and the fake engine hardly ever begins right."""
    rows = [{"question": f"Swear oath {n}."} for n in range(100)]
    write_folder(folder / "oaths", f'[[verifier]]\nkind = "regex"\npattern = "{word}"\n', rows[:80], rows[80:])


@pytest.fixture(autouse=True)
def _tasks(tmp_path: Path) -> Iterator[None]:
    oaths(tmp_path / "tasks")
    with library_in(tmp_path / "tasks"):
        yield


def row(place: int) -> TaskRef:
    return TaskRef("oaths", "own", place, 0, generator_of("oaths"))


def person(path: Path, count: int, text: str = TEXT) -> Path:
    """The file of a person who answered so many rows."""
    for place in range(count):
        keep_written(path, WrittenAnswer(row(place), text))
    return path


def group(place: int, *texts: str, external: bool = True) -> GroupRecorded:
    """A group that says of each of its texts that it is right."""
    asked = Question(row(place), "not asked like this", "0" * 64)
    rollouts = tuple(Rollout(text, "stop", 1.0) for text in texts)
    who = {"source": "external", "node": "b" * 26} if external else {}
    return GroupRecorded(round=0, group=Group(asked, rollouts, **who), trained=True)  # type: ignore[arg-type]


async def run(folder: Path, config: msgspec.Struct = UNTAUGHT, written: Path | None = None) -> list[Event]:
    """Every event of a node that ran to its end."""
    seen: list[Event] = []
    await follow(made(folder, config, written), seen.append)
    return seen


def made(folder: Path, config: msgspec.Struct = UNTAUGHT, written: Path | None = None) -> Node:
    engine = FakeEngine(LoadRequest("fake"))
    return Node(NodeSetup(config, "watched", folder, lambda _: engine, lambda: CALM, written=written))  # type: ignore[arg-type]


def trials(events: list[Event]) -> list[TrialMeasured]:
    return [e for e in events if isinstance(e, TrialMeasured)]


def imitated(events: list[Event]) -> list[int]:
    return [e.round for e in events if isinstance(e, RoundFinished) and e.examples]


async def known(
    *events: GroupRecorded, written: tuple[WrittenAnswer, ...] = (), excluded: tuple[str, ...] = ()
) -> list[KnownSuccess]:
    """What passes here of these groups and answers."""
    async with Scorer() as scorer:
        return await verify_candidates(
            scorer, collect_candidates(events, written, ("oaths", "basic_arithmetic")), frozenset(excluded)
        )


async def test_a_text_counts_by_the_verdict_of_this_node_and_not_by_what_came_with_it() -> None:
    """The shortest right text, under the question as it is regenerated here."""
    first, second = await known(
        group(0, "<answer>No</answer>", TEXT, f"I swear. {TEXT}"), group(1, "lies"), group(2, TEXT)
    )
    assert {(s.question.prompt, s.text, s.writer) for s in (first, second)} == {
        ("Swear oath 0.", TEXT, "others"),
        ("Swear oath 2.", TEXT, "others"),
    }
    hidden = await known(group(0, TEXT), excluded=(first.question.prompt_sha256, second.question.prompt_sha256))
    assert hidden == []


async def test_a_question_with_an_answer_of_its_own_takes_no_success() -> None:
    """reasoning_gym knows the answer to its sum; nobody knows one to the oath."""
    asked = TaskRef("basic_arithmetic", preset_of("basic_arithmetic", CONFIG.preset), 5)
    async with Scorer() as scorer:
        (pair,) = await scorer.examples([asked])
        assert pair is not None
        text = f"So: {pair[1]}"
        assert (await scorer.score(asked, [text])).rewards == (1.0,)
    (found,) = await known(written=(WrittenAnswer(asked, text), WrittenAnswer(row(3), TEXT)))
    assert found.question.ref == row(3)


async def test_successes_to_rows_set_aside_are_no_examples_and_each_question_comes_once() -> None:
    """References of a swarm count rows beyond their number: the same rows again."""
    again = [WrittenAnswer(TaskRef("oaths", "own", 80 + place, 0, generator_of("oaths")), TEXT) for place in range(80)]
    found = await known(written=(*(WrittenAnswer(row(place), TEXT) for place in range(80)), *again))
    assert len(found) == 80
    async with Scorer() as scorer:
        source = ExampleSource(UNTAUGHT, "key", "silo", scorer, frozenset(), lambda _: True, found)
        await source.open()
        passes = [await source.of_pass(number) for number in range(3)]
    apart = {example.question.prompt for example in source.apart}
    shown = [{example.question.prompt for example in examples} for examples in passes]
    assert len(apart) == 16
    assert shown[0] == shown[1] == shown[2]
    assert len(passes[0]) == len(shown[0]) == 64
    assert not apart & shown[0]
    assert [e.question.prompt for e in passes[0]] != [e.question.prompt for e in passes[1]]


async def test_what_a_person_wrote_is_imitated_where_a_task_gives_no_answers(tmp_path: Path) -> None:
    events = await run(tmp_path / "run", written=person(tmp_path / "answers.jsonl", 80))
    (trial,) = trials(events)
    assert trial.plan == "examples"
    assert set(trial.sources) == {"person"}
    assert trial.sources["person"] == trial.examples
    assert f"{trial.examples} examples (answers you wrote), all checked here." in trial.sentence
    assert [e for e in events if isinstance(e, ExamplesRead)][-1].right > 0


async def test_a_few_successes_are_no_phase_and_wrong_answers_none_at_all(tmp_path: Path) -> None:
    few = await run(tmp_path / "few", written=person(tmp_path / "few.jsonl", 10))
    wrong = await run(tmp_path / "wrong", written=person(tmp_path / "wrong.jsonl", 40, "<answer>Nay</answer>"))
    for events in (few, wrong):
        assert [trial.plan for trial in trials(events)] == ["nothing"]
        assert imitated(events) == []


async def test_successes_of_another_node_become_examples_when_practice_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node learns from a person and practises; what it got right then teaches the second one, which alone hardly
    ever is, and is told of while that one practises. The second phase has its own passes and readings, and a node that was
    stopped in it ends with the weights of one that was not."""
    monkeypatch.setattr(examples_phase, "LOOK_EVERY", 4)
    longer = msgspec.structs.replace(UNTAUGHT, rounds=40)
    first = await run(tmp_path / "first", longer, person(tmp_path / "answers.jsonl", 80))
    theirs = [
        msgspec.structs.replace(e, round=0, first_solved=False, group=_sent(e.group))
        for e in first
        if isinstance(e, GroupRecorded) and e.group.solved
    ]
    assert len({e.group.question.ref.seed % 80 for e in theirs}) > 16
    ends = []
    for name, stop_at in (("straight", -1), ("stopped", 5)):
        second = made(tmp_path / name, msgspec.structs.replace(TAKING, rounds=6))

        def seen(event: Event, second: Node = second, stop_at: int = stop_at) -> None:
            if isinstance(event, RoundFinished) and event.round == 1:
                second.journal.append(theirs)
            if isinstance(event, RoundFinished) and event.round == stop_at:
                second.command("stop")

        await follow(second, seen)
        if stop_at >= 0:
            await run(tmp_path / name, msgspec.structs.replace(TAKING, rounds=6))
        events = read_only(tmp_path / name / "journal.db")
        before, after = trials(events)
        assert (before.plan, after.plan, before.round, after.round) == ("nothing", "examples", 0, 4)
        assert set(after.sources) <= {"others", "own"}  # a lucky right answer of its own may be among them
        assert after.sources["others"] > 16
        steps = imitated(events)
        assert steps == list(range(4, 4 + len(steps)))
        readings = [e for e in events if isinstance(e, ExamplesRead)]
        assert readings[-1].over
        assert readings[-1].step == len(steps)
        assert readings[-1].right > 0
        assert sum(not e.examples for e in events if isinstance(e, RoundFinished)) == 6
        ends.append(weights(tmp_path / name, 6 + len(steps)))
    assert ends[0] == ends[1]


def _sent(group: Group) -> Group:
    """As another node holds it that received it."""
    return msgspec.structs.replace(group, source="external", node="a" * 26, advantages=())


FLAGS = "--silo --trainer fake --model fake --tasks oaths --eval-every 0 --examples only".split()


async def test_a_node_killed_in_the_phase_goes_on_with_the_texts_that_it_began_with(tmp_path: Path) -> None:
    """kill -9; meanwhile the person's answers are gone. A word that the fake engine spells out is
    learned slowly. The end is that of a phase that nothing disturbed."""
    for home in ("straight", "killed"):
        oaths(tmp_path / home / "data" / "tasks", "Aye")
        library.set_task_folder(tmp_path / home / "data" / "tasks")
        person(tmp_path / home / "data" / "written-answers.jsonl", 60, "<answer>Aye</answer>")
    done = await asyncio.to_thread(sapo, tmp_path / "straight", "node", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert "answers you wrote" in done.stdout
    async with node(tmp_path / "killed", *FLAGS, "--model", "fake:0.001") as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.round >= 2)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    (tmp_path / "killed" / "data" / "written-answers.jsonl").unlink()
    done = await asyncio.to_thread(sapo, tmp_path / "killed", "node", *FLAGS, "--model", "fake:0.001")
    assert done.returncode == 0, done.stderr
    (straight,) = (tmp_path / "straight" / "data" / "models").iterdir()
    (killed,) = (tmp_path / "killed" / "data" / "models").iterdir()
    steps = on_disk(straight).done
    assert on_disk(killed).told == on_disk(straight).told
    assert steps > 3
    assert weights(killed, steps) == weights(straight, steps)
