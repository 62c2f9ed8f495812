"""A journal stays small and its history whole: groups leave, rounds stand in blocks, other events grow sparse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.support.records import evaluation, finished, group_of, opened

from sapo_swarm.events import (
    CheckpointSaved,
    Evaluated,
    ExternalSwitched,
    GroupRecorded,
    LogLine,
    RoundFinished,
    RunStarted,
)
from sapo_swarm.node import journal_thinning
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.journal_thinning import (
    DENSE,
    EVERY,
    PRUNED_ROWS,
    SPARSE_ROOM,
    JournalDownsampler,
    JournalRetention,
    merge_rounds,
    sequences_to_drop,
)
from sapo_swarm.node.training_count import LINEAGE, TrainingCount, TrainingCounts
from sapo_swarm.sapo.held_out_tripwire import KINDS, watch_of


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened_journal:
        yield opened_journal


def line(text: str) -> LogLine:
    return LogLine(level="info", text=text)


def groups_in(journal: Journal) -> list[tuple[int, bool]]:
    return [(e.round, e.first_solved) for e in journal.read(kinds=("group",)) if isinstance(e, GroupRecorded)]


def rounds_in(journal: Journal) -> list[RoundFinished]:
    return [e for e in journal.read(kinds=("round",)) if isinstance(e, RoundFinished)]


def thin(journal: Journal, newest: int) -> None:
    thinning = JournalDownsampler(journal)
    while thinning.rounds(newest) or thinning.others():
        continue


def test_rounds_that_are_told_again_after_going_back_stand_in_blocks_like_all_others(journal: Journal) -> None:
    def told(first: int, end: int) -> int:
        for start in range(first, end, 1000):
            journal.append([finished(number) for number in range(start, min(start + 1000, end))])
            thin(journal, min(start + 1000, end) - 1)
        return len(rounds_in(journal))

    before = told(0, 8000)
    assert journal.roll_back(3001) > 0
    after = told(3001, 8000)
    assert after <= before + 32, "one more a size of blocks where the edge cuts through one"
    covered = [(event.round - event.covers, event.round) for event in rounds_in(journal)]
    assert all(end == begin for (_, end), (begin, _) in pairwise(covered) if begin > 3000)


def test_old_groups_go_but_every_tenth_round_first_successes_and_all_else_stay(journal: Journal) -> None:
    """In steps; what the text of a group says about first successes is only text."""
    liar = '"first_solved":true'
    for round_ in range(40):
        journal.append([group_of(round_, 0, text=liar), group_of(round_, 1, first=round_ == 7), line(str(round_))])
    thinning = JournalDownsampler(journal)
    assert thinning.groups(35) == 35 * 2 - 4 * 2 - 1
    assert thinning.groups(35) == 0
    kept = groups_in(journal)
    assert kept == [
        *[(0, False)] * 2,
        (7, True),
        *[(r, False) for r in (10, 20, 30) for _ in range(2)],
        *[(r, False) for r in range(35, 40) for _ in range(2)],
    ]
    assert len(journal.read(kinds=("log",))) == 40
    journal.append([line("new")])
    seqs = [event.seq for event in journal.read()]
    assert seqs == sorted(set(seqs))
    journal.close()
    again = Journal(journal.path)
    assert groups_in(again) == kept
    assert JournalDownsampler(again).groups(35) == 0
    again.close()


def test_a_long_run_keeps_the_groups_of_fewer_of_its_old_rounds(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_thinning, "OLD_GROUPS", 8)
    journal.append([group_of(round_, 0) for round_ in range(200)])
    thinning = JournalDownsampler(journal)
    while thinning.groups(150):
        continue
    assert [round_ for round_, _ in groups_in(journal)] == [0, 20, 40, 60, 80, 100, 120, 140, *range(150, 200)]


async def test_one_large_round_thins_nothing_of_the_past(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what is stored, neither the last round nor what else it tells of."""
    monkeypatch.setattr(journal_thinning, "OLD_GROUPS", 20)
    journal.append([group_of(round_, 0) for round_ in range(200)])
    journal.append([*[group_of(199, n) for n in range(1, 90)], *[line(str(n)) for n in range(90)]])
    retention = JournalRetention(journal, 20)
    retention.round_done(200)
    await retention.close()
    assert [round_ for round_, _ in groups_in(journal) if round_ < 180] == list(range(0, 180, 10))


def test_a_first_round_larger_than_all_room_is_no_endless_search(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_thinning, "OLD_GROUPS", 8)
    journal.append([group_of(0, n) for n in range(20)])
    journal.append([group_of(round_, 0) for round_ in range(1, 60)])
    assert JournalDownsampler(journal).groups(50) == 49
    assert len(groups_in(journal)) == 30


def test_a_step_of_pruning_is_bounded(journal: Journal) -> None:
    journal.append([group_of(1 + round_ % 9, round_) for round_ in range(PRUNED_ROWS + 10)])
    thinning = JournalDownsampler(journal)
    assert [thinning.groups(20) for _ in range(3)] == [PRUNED_ROWS, 10, 0]


async def test_rounds_go_on_while_old_groups_leave_in_the_background(journal: Journal) -> None:
    """A backlog of many steps is worked off beside the writers; the end of a run waits for one step at most."""
    old = 5 * PRUNED_ROWS
    journal.append([group_of(1 + number // PRUNED_ROWS, number) for number in range(old)])
    bus, retention = EventBus(journal), JournalRetention(journal, 5)
    retention.round_done(20)
    assert len(groups_in(journal)) == old, "nothing is dropped in the caller's time"
    for number in range(20):
        await bus.publish(line(str(number)))
        retention.round_done(20 + number)
    await retention.settled()
    assert groups_in(journal) == []
    await retention.close()
    assert len(journal.read(kinds=("log",))) == 20


async def test_a_run_that_keeps_all_groups_drops_none(journal: Journal) -> None:
    journal.append([group_of(1, 0)])
    retention = JournalRetention(journal, 0)
    retention.round_done(1000)
    await retention.close()
    assert groups_in(journal) == [(1, False)]


def test_old_rounds_stand_in_blocks_and_no_count_is_lost(journal: Journal) -> None:
    total = 6 * DENSE
    journal.append([finished(number, reward=number / total) for number in range(total)])
    thin(journal, total - 1)
    found = rounds_in(journal)
    assert len(found) < 1.8 * DENSE
    assert (found[0].round, found[0].covers) == (0, 1), "the first round is never merged"
    assert sum(r.covers for r in found) == total
    assert sum(r.tokens_generated for r in found) == sum(1000 + n % 7 for n in range(total))
    assert [r.round for r in found] == sorted({r.round for r in found})
    assert [r.covers for r in found[-DENSE:]] == [1] * DENSE, "the newest stay one by one"
    assert max(r.covers for r in found) == 16
    for before, after in pairwise(found):
        assert after.round - before.round == after.covers, "a record is named after the last of its rounds"


def test_thinning_goes_on_where_another_process_stopped_and_changes_nothing_twice(journal: Journal) -> None:
    journal.append([finished(number) for number in range(3 * DENSE)])
    JournalDownsampler(journal).rounds(3 * DENSE - 1)
    half = len(rounds_in(journal))
    thin(journal, 3 * DENSE - 1)
    done = rounds_in(journal)
    assert len(done) < half
    thin(journal, 3 * DENSE - 1)
    assert rounds_in(journal) == done


def test_blocks_do_not_mix_examples_with_practice_nor_span_a_step_back(journal: Journal) -> None:
    """Steps and rounds are counted from these records, however old they are."""
    back = CheckpointSaved(round=31, weights="w", parent="p", optimizer=False, bytes=1, reason="rollback", restored=25)
    taught = [msgspec.structs.replace(finished(number), examples=8, reward_local=None) for number in range(19)]
    total = 3 * DENSE
    journal.append([*taught, *(finished(n) for n in range(19, 30)), back, *(finished(n) for n in range(31, total))])
    counts = TrainingCounts.of(journal.read(kinds=LINEAGE))
    assert counts.now == TrainingCount(19, 6 + total - 31)
    thin(journal, total - 1)
    assert len(rounds_in(journal)) < total / 2
    assert TrainingCounts.of(journal.read(kinds=LINEAGE)).now == counts.now


def test_a_block_tells_means_sums_and_the_range() -> None:
    one = merge_rounds([finished(1, 0.2), finished(2, 0.4)])
    both = merge_rounds([one, merge_rounds([finished(3, 0.9), finished(4, 0.1)])])
    assert both.reward_local == pytest.approx(0.4)
    assert (both.lowest["reward_local"], both.highest["reward_local"]) == (0.1, 0.9)
    assert (both.covers, both.round, both.time) == (4, 4, 4.0)
    assert both.completions == 4 * 64
    assert both.seconds == {"generate": 4.0, "update": 2.0}
    assert both.reward_external is None
    assert "reward_external" not in both.lowest
    assert both.task_rewards["bf"] == pytest.approx(0.4)
    assert both.ratio_max == 3.0


def test_other_events_grow_sparse_with_age_and_the_best_evaluations_stay(journal: Journal) -> None:
    room = SPARSE_ROOM["evaluation"]
    scores = {100: 0.6, 333: 0.7}
    for number in range(0, 5 * room, 100):
        journal.append([evaluation(n, scores.get(n, 0.5)) for n in range(number, number + 100)])
        thin(journal, 0)
    found = [e.round for e in journal.read(kinds=("evaluation",))]  # type: ignore[union-attr]
    assert len(found) < 3 * room
    assert {0, 100, 333} <= set(found)
    assert found[-room:] == list(range(4 * room, 5 * room))
    journal.close()


SMALL = msgspec.structs.replace(evaluation(30, 1.0), items=1)
LOOKED = ExternalSwitched(round=30, taking=True, by="tripwire", sentence="", best=0.22, now=0.22, items=2000)
ELSEWHERE = [msgspec.structs.replace(opened(n), held_out=asked) for n, asked in ((0, "a"), (40, "b"), (50, "a"))]


@pytest.mark.parametrize(
    "early",
    [
        [evaluation(30, 0.45), LOOKED],
        [SMALL],
        [msgspec.structs.replace(SMALL, asked=16)],
        [ELSEWHERE[0], evaluation(30, 0.5), ELSEWHERE[1], evaluation(45, 0.9), ELSEWHERE[2]],
    ],
    ids=["a closer look that lowered the mark", "one question", "one that was answered", "other tasks meanwhile"],
)
def test_the_tripwires_mark_outlives_thinning_whatever_else_was_evaluated(
    journal: Journal, early: list[RunStarted | Evaluated | ExternalSwitched]
) -> None:
    """Another mark would let the best checkpoint go."""
    usual = [evaluation(n, 0.4 if n == 150 else 0.2 + n % 7 / 1000) for n in range(100, 1400)]
    story = [*early, *usual]
    for start in range(0, len(story), 100):
        journal.append(story[start : start + 100])
        thin(journal, 0)
    kept = journal.read(kinds=KINDS)
    assert len(kept) < len(story) - 300
    best = watch_of(kept, 16, 0.25).best
    assert best == watch_of(story, 16, 0.25).best
    assert best is not None
    assert best.round == 150


def test_of_long_ago_the_first_stays_and_gaps_grow_with_age() -> None:
    kept = sorted(set(range(100_000)) - sequences_to_drop(range(100_000), 99_999, 100))
    assert kept[0] == 0
    assert kept[-100:] == list(range(99_900, 100_000))
    assert len(kept) < 1200
    assert kept[1] - kept[0] > 500


async def test_retention_looks_at_rounds_now_and_then_and_at_the_end(journal: Journal) -> None:
    journal.append([finished(number) for number in range(DENSE + 400)])
    retention = JournalRetention(journal, 0)
    for _ in range(EVERY):
        retention.round_done(DENSE + 400)
    await retention.settled()
    assert len(rounds_in(journal)) < DENSE + 400
    await retention.close()
