"""The index of a run's groups: what it finds, how it follows a journal that grows, is thinned, taken back and replaced."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.many_groups import group_number, journal_with

from sapo_desktop.dashboard.history import groups as reading
from sapo_desktop.dashboard.history.groups import (
    STEP,
    GroupFilter,
    GroupIndex,
    GroupQuery,
    GroupQueryResult,
    GroupReader,
    JournalGroups,
    RecordedGroups,
    build_group_index,
    export_groups,
)
from sapo_desktop.errors import AppError
from sapo_swarm.events import GroupRecorded, decode_event
from sapo_swarm.node.journal import Journal, JournalError

COUNT = 2 * STEP + 20
ALL = [group_number(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journal_with(tmp_path_factory.mktemp("run") / "journal.db", COUNT)


@pytest.fixture
def index(journal: Path) -> Iterator[GroupIndex]:
    made = build_group_index(JournalGroups(journal), None)
    yield made
    made.close()


def number(event: GroupRecorded) -> int:
    """Which of ALL it is."""
    return event.group.question.ref.seed


def found(index: GroupIndex, wanted: GroupFilter) -> list[int]:
    return [number(event) for event in index.every(wanted)]


def has_word(event: GroupRecorded, word: str) -> bool:
    texts = [event.group.question.prompt, *(rollout.text for rollout in event.group.rollouts)]
    return any(piece.startswith(word) for text in texts for piece in re.split(r"[^a-z0-9]+", text))


FILTERS = {
    GroupFilter(): lambda e: True,
    GroupFilter(task="bf"): lambda e: e.group.question.ref.dataset == "bf",
    GroupFilter(source="external"): lambda e: e.group.external,
    GroupFilter(source="local", reward="mixed"): lambda e: not e.group.external and e.group.nonzero_advantage,
    GroupFilter(reward="all right"): lambda e: min(e.group.rewards) >= 1,
    GroupFilter(reward="none right"): lambda e: max(e.group.rewards) <= 0,
    GroupFilter(trained="trained on"): lambda e: e.trained,
    GroupFilter(trained="not trained on", task="bf"): lambda e: not e.trained and e.group.question.ref.dataset == "bf",
    GroupFilter(first_solved=True): lambda e: e.first_solved,
    GroupFilter(text="mult"): lambda e: has_word(e, "mult"),
    GroupFilter(text="question 52"): lambda e: has_word(e, "52"),
    GroupFilter(text="MULTIPLY, the", source="external"): lambda e: e.group.external and has_word(e, "multiply"),
    GroupFilter(text="52", task="bf", reward="mixed"): lambda e: (
        has_word(e, "52") and e.group.question.ref.dataset == "bf" and e.group.nonzero_advantage
    ),
    GroupFilter(task="no_such_task"): lambda e: False,
    GroupFilter(text='"*( OR NEAR'): lambda e: False,
}


@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
def test_a_filter_finds_what_reading_every_group_finds(index: GroupIndex, wanted: GroupFilter) -> None:
    expected = [number(event) for event in reversed(ALL) if FILTERS[wanted](event)]
    assert found(index, wanted) == expected
    assert index.page(wanted, 10).total == len(expected)


def test_the_last_word_may_be_unfinished_and_the_others_are_whole(index: GroupIndex) -> None:
    assert found(index, GroupFilter(text="mul")) == found(index, GroupFilter(text="multiply"))
    assert found(index, GroupFilter(text="mul ")) == []
    assert found(index, GroupFilter(text="mul the")) == []


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("计算十二加七", ("十二", "计算", "七", "加 计算", "calc十二")),
        ("หนึ่งสอง", ("สอง", "หนึ่ง")),
        ("des cafe\u0301s noirs", ("cafés noirs", "cafe\u0301s noirs", "cafes", "cafe\u0301")),
        ("des cafés noirs", ("cafés noirs", "cafe\u0301s noirs", "cafes", "cafe\u0301")),
    ],
)
def test_a_word_in_the_middle_of_a_sentence_without_blanks_and_an_accent_are_found(
    text: str, asked: tuple[str, ...]
) -> None:
    event = group_number(1)
    question = msgspec.structs.replace(event.group.question, prompt=f"calc {text}")
    asking = msgspec.structs.replace(event, group=msgspec.structs.replace(event.group, question=question))
    index = build_group_index(RecordedGroups([asking]), None)
    assert [word for word in asked if not found(index, GroupFilter(text=word))] == []
    assert found(index, GroupFilter(text="二十")) == found(index, GroupFilter(text="café noirs")) == []
    index.close()


def test_pages_lead_through_all_groups_in_both_directions(index: GroupIndex) -> None:
    wanted = GroupFilter(source="local")
    down = [index.page(wanted, 50)]
    while down[-1].seqs:
        down.append(index.page(wanted, 50, down[-1].seqs[-1]))
    seqs = [seq for page in down for seq in page.seqs]
    assert len(seqs) == down[0].total == len(set(seqs))
    up = [index.page(wanted, 50, 0, "newer")]
    while up[-1].seqs:
        up.append(index.page(wanted, 50, up[-1].seqs[0], "newer"))
    assert [seq for page in reversed(up) for seq in page.seqs] == seqs


def test_of_a_recording_only_what_was_told_is_found() -> None:
    index = build_group_index(RecordedGroups([None, *ALL[:10]]), None)
    assert [number(event) for event in index.every(GroupFilter(), upto=4)] == [2, 1, 0]
    assert index.page(GroupFilter(text="question"), 10, upto=4).total == 3
    index.close()


def test_an_index_in_a_file_is_there_the_next_time(journal: Path, tmp_path: Path) -> None:
    build_group_index(JournalGroups(journal), tmp_path).close()
    again = GroupIndex(JournalGroups(journal), tmp_path)
    assert again.page(GroupFilter(), 10).total == COUNT
    assert not again.step()
    assert again.path is not None
    assert again.path.stat().st_mode & 0o077 == 0, "it holds words of the rollouts"
    again.close()


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0 and then nothing"])
def test_a_damaged_index_is_made_again(journal: Path, tmp_path: Path, damage: bytes) -> None:
    first = build_group_index(JournalGroups(journal), tmp_path)
    path = first.path
    first.close()
    assert path is not None
    for old in tmp_path.glob("*.db*"):
        old.unlink()
    path.write_bytes(damage)
    again = build_group_index(JournalGroups(journal), tmp_path)
    assert again.page(GroupFilter(), 10).total == COUNT
    again.close()


def test_the_index_of_another_journal_at_the_same_place_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    build_group_index(JournalGroups(journal_with(path, 30)), tmp_path / "cache").close()
    for old in tmp_path.glob("journal.db*"):
        old.unlink()
    other = Journal(path)
    other.append([group_number(7)])
    other.close()
    index = build_group_index(JournalGroups(path), tmp_path / "cache")
    assert found(index, GroupFilter()) == [7]
    index.close()


def test_the_index_of_a_deleted_journal_goes_when_the_next_one_is_made(tmp_path: Path) -> None:
    gone, cache = journal_with(tmp_path / "gone.db", 5), tmp_path / "cache"
    build_group_index(JournalGroups(gone), cache).close()
    gone.unlink()
    build_group_index(JournalGroups(journal_with(tmp_path / "kept.db", 5)), cache).close()
    assert len(list(cache.glob("*.db"))) == 1


def test_it_follows_a_journal_that_grows_is_thinned_and_taken_back(tmp_path: Path) -> None:
    path = journal_with(tmp_path / "journal.db", 200)
    node, index = Journal(path), build_group_index(JournalGroups(path), None)
    assert not index.changed()
    node.append([group_number(200), group_number(201)])
    assert index.changed()
    assert index.step()
    assert found(index, GroupFilter())[:3] == [201, 200, 199]
    with node.writing() as db:
        db.execute("DELETE FROM events WHERE kind = 'group' AND round < 2")
    assert index.changed()
    assert found(index, GroupFilter(text="question"))[-1] == 64
    assert index.page(GroupFilter(text="question"), 10).total == 138
    node.roll_back(3)
    assert index.changed()
    node.append([group_number(999)])
    assert index.changed()
    assert index.step()
    assert found(index, GroupFilter())[:2] == [999, 95]
    assert index.page(GroupFilter(text="question"), 10).total == 33
    node.close()
    index.close()


def test_an_index_of_which_most_is_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_desktop.dashboard.history.groups._SPARE", 10)
    path = journal_with(tmp_path / "journal.db", 100)
    node, index = Journal(path), build_group_index(JournalGroups(path), None)
    with node.writing() as db:
        db.execute("DELETE FROM events WHERE kind = 'group' AND round < 2")
    assert index.changed()
    assert index.page(GroupFilter(), 10).total == 0
    while index.step():
        pass
    assert index.page(GroupFilter(text="question"), 10).total == 36
    node.close()
    index.close()


def test_a_group_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    path = journal_with(tmp_path / "journal.db", 5)
    node = Journal(path)
    with node.writing() as db:
        db.execute("UPDATE events SET body = x'00' WHERE seq = 3")
    node.close()
    index = build_group_index(JournalGroups(path), None)
    assert found(index, GroupFilter()) == [4, 3, 2, 0]
    index.close()


def test_the_journal_is_only_read(journal: Path) -> None:
    source = JournalGroups(journal)
    with pytest.raises(Exception, match="readonly"):
        source._db.execute("DELETE FROM events")
    source.close()


def test_an_export_is_the_journal_s_own_lines_and_never_overwrites(journal: Path, tmp_path: Path) -> None:
    path, wanted = tmp_path / "out.jsonl", GroupFilter(reward="all right")
    count = export_groups(JournalGroups(journal), None, wanted, path)
    lines = path.read_bytes().splitlines()
    assert [number(decode_event(line)) for line in lines] == [
        number(e) for e in reversed(ALL) if min(e.group.rewards) >= 1
    ]  # type: ignore[arg-type]
    assert count == len(lines)
    with pytest.raises(AppError, match="exists already"):
        export_groups(JournalGroups(journal), None, wanted, path)


def test_the_reader_answers_the_newest_wish_and_says_what_is_wrong(journal: Path, tmp_path: Path) -> None:
    answers: list[GroupQueryResult] = []
    whole_one = threading.Event()

    def told(answer: GroupQueryResult) -> None:
        answers.append(answer)
        if answer.problem or (answer.wish.filter.text == "multiply" and answer.indexed == answer.of):
            whole_one.set()

    reader = GroupReader(lambda: GroupIndex(JournalGroups(journal)), told)
    for text in ("m", "mu", "multiply"):
        reader.ask(GroupQuery(GroupFilter(text=text)))
    assert whole_one.wait(20)
    reader.close()
    reader.join()
    assert answers[-1].total == sum(has_word(event, "multiply") for event in ALL)
    whole_one.clear()
    reader = GroupReader(lambda: GroupIndex(JournalGroups(tmp_path / "no.db")), told)
    assert whole_one.wait(20)
    reader.close()
    reader.join()
    assert "no journal" in answers[-1].problem


def test_an_index_that_did_not_open_once_is_tried_again(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "IDLE_S", 0.0)
    problems, told, whole_one = ["The disk is full"] * 2, list[str](), threading.Event()

    def opened() -> GroupIndex:
        if problems:
            raise JournalError(problems.pop())
        return GroupIndex(JournalGroups(journal))

    def tell(answer: GroupQueryResult) -> None:
        told.append(answer.problem)
        if answer.total == COUNT:
            whole_one.set()

    reader = GroupReader(opened, tell)
    assert whole_one.wait(20)
    reader.close()
    reader.join()
    assert [problem for problem in told if problem] == ["The disk is full"] * 2


def test_a_cache_that_does_not_let_its_index_be_removed_is_one_sentence(journal: Path, tmp_path: Path) -> None:
    source = JournalGroups(journal)
    made = GroupIndex(source, tmp_path)
    made.close()
    assert made.path is not None
    made.remove()
    made.path.mkdir()
    with pytest.raises(JournalError, match="Cannot keep an index"):
        GroupIndex(source, tmp_path)
