"""Which texts may be known successes, in which order they are tried, and what is kept of them on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums

from sapo_desktop.commands.swarms.contribute import AnswerSession
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node import known_successes
from sapo_swarm.node.base_trial import sources_in_words
from sapo_swarm.node.known_successes import (
    KeptSuccesses,
    KnownSuccess,
    WrittenAnswer,
    collect_candidates,
    keep_written,
    read_written,
)
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import HELD_OUT_SEED
from sapo_swarm.types import MAX_COMPLETION_BYTES, EpisodeTurn, Group, Question, Rollout, TaskRef


def ref(seed: int = 1, dataset: str = "bf") -> TaskRef:
    return TaskRef(dataset, "easy", seed)


def told(*rollouts: Rollout, seed: int = 1, dataset: str = "bf", **group: object) -> GroupRecorded:
    """A group as the journal holds it."""
    asked = Question(ref(seed, dataset), "Which?", "0" * 64)
    return GroupRecorded(round=0, group=Group(asked, rollouts, **group), trained=True)  # type: ignore[arg-type]


def right(text: str, **more: object) -> Rollout:
    return Rollout(text, "stop", 1.0, **more)  # type: ignore[arg-type]


def texts(*events: GroupRecorded, written: tuple[WrittenAnswer, ...] = (), others: bool = True) -> list[str]:
    """Of the question with the seed 1."""
    return [c.text for c in collect_candidates(events, written, ("bf",), others=others).get(ref(), [])]


def test_the_person_comes_first_then_the_model_then_others_answers_and_short_before_long() -> None:
    own = told(right("own, at length"), right("own"), Rollout("wrong", "stop", 0.0))
    other = told(right("Visit example.com <answer>x</answer>"), right("x"), source="external", node="a" * 26)
    written = (WrittenAnswer(ref(), "what a person wrote at length"), WrittenAnswer(ref(), "a person"))
    assert texts(other, own, written=written) == [
        "a person",
        "what a person wrote at length",
        "own",
        "own, at length",
        "<answer>x</answer>",
    ], "and of others only what was judged"
    assert texts(other, own, others=False) == ["own", "own, at length"]


@pytest.mark.parametrize(
    ("extract", "text", "answer"),
    [
        ("tags", "Visit example.com <answer>7</answer>", "<answer>7</answer>"),
        ("last_line", "Visit example.com\n7", "7"),
        ("last_number", "Visit example.com: 7", "7"),
        ("json", 'Visit example.com {"a": 7}', '{"a": 7}'),
    ],
)
def test_of_others_texts_to_a_task_of_ones_own_too_only_the_answer_is_tried(
    extract: str, text: str, answer: str, tmp_path: Path
) -> None:
    sums(tmp_path / "sums")
    spec = tmp_path / "sums" / "task.toml"
    spec.write_text(f'extract = "{extract}"\n' + spec.read_text("utf-8"), encoding="utf-8")
    asked = Question(TaskRef("sums", "task", 1, generator="task-1"), "q", "0" * 64)
    event = GroupRecorded(round=0, group=Group(asked, (right(text),), "external", "a" * 26), trained=True)
    with library_in(tmp_path):
        known = collect_candidates([event], (), ("sums",))
    assert [candidate.text for candidate in known[asked.ref]] == [answer]
    assert collect_candidates([event], (), ("sums",)) == {}, "the task was removed meanwhile"


@pytest.mark.parametrize(
    "event",
    [
        told(Rollout("a", "length", 1.0)),
        told(Rollout("a", "stop", 0.9)),
        told(right("a", shortcut=True)),
        told(right("a", turns=(EpisodeTurn("a"),))),
        told(right("a"), dataset="chain_sum"),
        told(right("a"), seed=HELD_OUT_SEED),
        told(right("")),
        told(right("a" * (MAX_COMPLETION_BYTES + 1))),
    ],
    ids=["cut off", "in part", "shortcut", "episode", "other task", "held out", "empty", "too long"],
)
def test_what_is_no_plain_right_answer_to_a_training_question_is_never_tried(event: GroupRecorded) -> None:
    assert collect_candidates([event], (), ("bf",)) == {}
    assert collect_candidates([], (WrittenAnswer(event.group.question.ref, ""),), ("bf",)) == {}


def test_the_number_of_questions_and_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest questions stay; of many texts the shortest ones are judged."""
    monkeypatch.setattr(known_successes, "QUESTIONS_KNOWN", 2)
    events = [told(*(right("a" * n) for n in range(9, 0, -1)), seed=seed) for seed in (3, 2, 1)]
    known = collect_candidates(events, (), ("bf",))
    assert [asked.seed for asked in known] == [1, 2]
    assert [c.text for c in known[ref()]] == ["a", "aa", "aaa"]


def test_answers_of_the_person_are_kept_once_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_successes, "WRITTEN_MOST", 2)
    path = tmp_path / "data" / "answers.jsonl"
    for text in ("one", "two", "two", "three"):
        keep_written(path, WrittenAnswer(ref(), text))
    assert [answer.text for answer in read_written(path)] == ["two", "three"]
    path.write_bytes(b'{"ref": 1}\n\xff\n' + path.read_bytes())
    assert [answer.text for answer in read_written(path)] == ["two", "three"]
    monkeypatch.setattr(known_successes, "WRITTEN_BYTES", 10)
    assert read_written(path) == []
    assert read_written(None) == []


def test_what_a_phase_imitates_comes_back_from_the_disk(tmp_path: Path) -> None:
    kept = KeptSuccesses(7, (KnownSuccess(Question(ref(), "Which?", "0" * 64), "a", "others"),))
    assert known_successes.read_kept(tmp_path) is None
    known_successes.write_kept(tmp_path, kept)
    assert known_successes.read_kept(tmp_path) == kept
    (tmp_path / known_successes.KEPT).write_bytes(b"[[[")
    assert known_successes.read_kept(tmp_path) is None


def test_the_announcement_says_where_the_texts_come_from_and_how_many_from_each_of_several() -> None:
    several = {"table": 80, "person": 10, "others": 6}
    assert (
        sources_in_words(several)
        == "96 examples: 80 rows of your tables, 10 answers you wrote, 6 answers of others, all checked here."
    )
    assert sources_in_words({"own": 1}) == "1 example (earlier answer of this model), all checked here."
    assert sources_in_words({"task": 64}) == "64 examples (questions with the task's own answers)."
    assert sources_in_words({}) == sources_in_words({}, 16) == ""


def test_the_announcement_says_where_the_other_rows_to_train_on_went() -> None:
    """119 rows to train on and 103 examples: the 16 between them are named."""
    assert (
        sources_in_words({"table": 103}, 16)
        == "103 examples (rows of your tables). 16 more are set aside, to see whether examples help."
    )
    assert sources_in_words({"table": 5}, 1).endswith(" 1 more is set aside, to see whether examples help.")


def test_a_right_answer_of_who_contributes_is_kept_and_a_disk_that_refuses_is_told_of(tmp_path: Path) -> None:
    """What stands in the way of keeping it ends nothing: the answer is shared all the same."""
    asked, whose = Question(ref(), "Which?", "0" * 64), Identity.generate()
    desk = AnswerSession(Scorer(), whose, "s", ["bf"], "easy", kept=tmp_path / "answers.jsonl")
    assert desk.keep(asked, "a") == ""
    assert read_written(tmp_path / "answers.jsonl") == [WrittenAnswer(ref(), "a")]
    (tmp_path / "file").touch()
    assert "Not kept" in AnswerSession(Scorer(), whose, "s", ["bf"], "easy", kept=tmp_path / "file" / "a").keep(
        asked, "a"
    )
