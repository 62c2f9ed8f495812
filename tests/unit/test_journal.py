"""The journal and the bus: nothing twice, nothing missing, nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapo_swarm.events import LogLine, StateChanged, Vitals
from sapo_swarm.node.bus import QUEUE_LIMIT, Bus
from sapo_swarm.node.journal import Journal, JournalError, read_only

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
