"""The journal and the bus: nothing twice, nothing missing, nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapo_swarm.events import GroupRecorded, LogLine, StateChanged, Vitals
from sapo_swarm.node.event_bus import QUEUE_LIMIT, Bus
from sapo_swarm.node.storage.journal import PRUNED_ROWS, Journal, JournalError, read_only
from sapo_swarm.node.storage.retention import Retention
from sapo_swarm.types import Group, Question, Rollout, TaskRef

VITALS = Vitals(tokens_per_s=1.0, rounds_per_hour=None, memory=1, cpu_percent=1.0, watts=None, celsius=None)


def line(text: str) -> LogLine:
    return LogLine(level="info", text=text)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.db")


def test_stored_events_come_back_in_order_with_their_numbers(journal: Journal) -> None:
    stored = journal.append([line("a"), line("b"), StateChanged(state="paused", sentence="c")])
    assert [e.seq for e in stored] == [1, 2, 3]
    assert journal.read() == stored
    assert journal.read(after=1, kinds=("log",)) == stored[1:2]
    assert journal.read(tail=2) == stored[1:]
    journal.close()


def test_a_batch_with_an_ephemeral_event_is_stored_not_at_all(journal: Journal) -> None:
    with pytest.raises(TypeError, match="ephemeral"):
        journal.append([line("a"), VITALS])
    assert journal.read() == []
    journal.close()


def test_another_process_may_read_while_the_node_writes(journal: Journal) -> None:
    journal.append([line("a")])
    assert len(read_only(journal.path)) == 1
    journal.append([line("b")])
    assert len(read_only(journal.path)) == 2
    journal.close()


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalError, match=r"journal\.db"):
        Journal(path)
    with pytest.raises(JournalError, match="no journal"):
        read_only(tmp_path / "missing.db")


async def test_a_late_subscriber_misses_nothing_and_hears_nothing_twice(journal: Journal) -> None:
    bus = Bus(journal)
    texts: list[str] = []

    async def write() -> None:
        for number in range(200):
            await bus.publish(line(str(number)))

    async def listen() -> None:
        async with bus.subscribe(after=0) as (past, queue):
            texts.extend(e.text for e in past if isinstance(e, LogLine))
            while len(texts) < 200:
                event = await queue.get()
                assert isinstance(event, LogLine)
                texts.append(event.text)

    await asyncio.gather(write(), listen())
    assert texts == [str(number) for number in range(200)]
    journal.close()


async def test_a_subscriber_that_sleeps_loses_vitals_first_and_is_then_cut_off(journal: Journal) -> None:
    bus = Bus(journal)
    async with bus.subscribe(after=0) as (_, queue):
        for _ in range(QUEUE_LIMIT + 50):
            bus.stream(VITALS)
        assert queue.qsize() == QUEUE_LIMIT
        await bus.publish(line("one too many"))
        last = None
        while not queue.empty():
            last = queue.get_nowait()
        assert last is None, "the end of the stream is told"
    journal.close()


async def test_closing_ends_every_subscription(journal: Journal) -> None:
    bus = Bus(journal)
    async with bus.subscribe(after=0) as (_, queue):
        bus.close()
        assert await queue.get() is None
    journal.close()


def group_of(round_: int, slot: int, first: bool = False, text: str = "x") -> GroupRecorded:
    question = Question(TaskRef("bf", "starter", 100 * round_ + slot), "p", "0" * 64)
    group = Group(question, (Rollout(text, "stop", 1.0), Rollout(text, "stop", 0.0)))
    return GroupRecorded(round=round_, group=group, trained=True, first_solved=first)


def groups_in(journal: Journal) -> list[tuple[int, bool]]:
    return [(e.round, e.first_solved) for e in journal.read(kinds=("group",)) if isinstance(e, GroupRecorded)]


def test_old_groups_go_but_every_tenth_round_first_successes_and_all_else_stay(journal: Journal) -> None:
    """In steps; what the text of a group says about first successes is only text."""
    liar = '"first_solved":true'
    for round_ in range(40):
        journal.append([group_of(round_, 0, text=liar), group_of(round_, 1, first=round_ == 7), line(str(round_))])
    assert journal.prune(35) == 35 * 2 - 4 * 2 - 1
    assert journal.prune(35) == 0
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
    assert again.prune(35) == 0
    again.close()


def test_a_step_of_pruning_is_bounded(journal: Journal) -> None:
    journal.append([group_of(1 + round_ % 9, round_) for round_ in range(PRUNED_ROWS + 10)])
    assert [journal.prune(20) for _ in range(3)] == [PRUNED_ROWS, 10, 0]
    journal.close()


async def test_rounds_go_on_while_old_groups_leave_in_the_background(journal: Journal) -> None:
    """A backlog of many steps is worked off beside the writers; the end of a run waits for one step at most."""
    old = 5 * PRUNED_ROWS
    journal.append([group_of(1 + number // PRUNED_ROWS, number) for number in range(old)])
    bus, retention = Bus(journal), Retention(journal, 5)
    retention.round_done(20)
    assert len(groups_in(journal)) == old, "nothing is dropped in the caller's time"
    for number in range(20):
        await bus.publish(line(str(number)))
        retention.round_done(20 + number)
    await retention.settled()
    assert groups_in(journal) == []
    await retention.close()
    assert len(journal.read(kinds=("log",))) == 20
    journal.close()


async def test_a_run_that_keeps_all_groups_drops_none(journal: Journal) -> None:
    journal.append([group_of(1, 0)])
    retention = Retention(journal, 0)
    retention.round_done(1000)
    await retention.close()
    assert groups_in(journal) == [(1, False)]
    journal.close()
