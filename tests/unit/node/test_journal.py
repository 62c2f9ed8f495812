"""The journal and the bus: nothing twice, nothing missing, nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
import random
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.support.records import evaluation, finished, group_of, in_a_swarm, opened

from sapo_swarm.events import LogLine, StateChanged, Vitals, encode_event
from sapo_swarm.node.journal import QUEUE_LIMIT, EventBus, Journal, JournalError, read_only
from sapo_swarm.types import Peer

VITALS = Vitals(tokens_per_s=1.0, rounds_per_hour=None, memory=1, cpu_percent=1.0, celsius=None)


def line(text: str) -> LogLine:
    return LogLine(level="info", text=text)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened_journal:
        yield opened_journal


def test_stored_events_come_back_in_order_with_their_numbers(journal: Journal) -> None:
    stored = journal.append([line("a"), line("b"), StateChanged(state="paused", sentence="c")])
    assert [e.seq for e in stored] == [1, 2, 3]
    assert journal.read() == stored
    assert journal.read(after=1, kinds=("log",)) == stored[1:2]
    assert journal.read(tail=2) == stored[1:]


def test_the_picture_of_a_swarm_of_a_hundred_takes_a_third_of_its_json_and_is_read_as_it_was(journal: Journal) -> None:
    chance = random.Random(1)
    peers = tuple(
        Peer(
            f"{chance.getrandbits(104):026x}",
            f"laptop-{n}",
            "starter-1m",
            700 + n,
            0.01 + chance.random() / 1000,
            n,
            12.3,
        )
        for n in range(100)
    )
    told = msgspec.structs.replace(in_a_swarm(7.0), peers=peers)
    stored = journal.append([told])
    assert journal.read() == stored == [msgspec.structs.replace(told, seq=1)]
    with journal._reading() as db:
        (size,) = db.execute("SELECT length(body) FROM events").fetchone()
    assert size < len(encode_event(told)) / 3


def test_a_batch_with_an_ephemeral_event_is_stored_not_at_all(journal: Journal) -> None:
    with pytest.raises(TypeError, match="ephemeral"):
        journal.append([line("a"), VITALS])
    assert journal.read() == []


def test_another_process_may_read_while_the_node_writes(journal: Journal) -> None:
    journal.append([line("a")])
    assert len(read_only(journal.path)) == 1
    journal.append([line("b")])
    assert len(read_only(journal.path)) == 2


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalError, match=r"journal\.db"):
        Journal(path)
    with pytest.raises(JournalError, match="no journal"):
        read_only(tmp_path / "missing.db")


async def test_a_late_subscriber_misses_nothing_and_hears_nothing_twice(journal: Journal) -> None:
    bus = EventBus(journal)
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


async def test_a_subscriber_that_sleeps_loses_vitals_first_and_is_then_cut_off(journal: Journal) -> None:
    bus = EventBus(journal)
    async with bus.subscribe(after=0) as (_, queue):
        for _ in range(QUEUE_LIMIT + 50):
            bus.stream(VITALS)
        assert queue.qsize() == QUEUE_LIMIT
        await bus.publish(line("one too many"))
        last = None
        while not queue.empty():
            last = queue.get_nowait()
        assert last is None, "the end of the stream is told"


async def test_closing_ends_every_subscription(journal: Journal) -> None:
    bus = EventBus(journal)
    async with bus.subscribe(after=0) as (_, queue):
        bus.close()
        assert await queue.get() is None


def test_only_its_owner_may_read_a_journal_and_the_files_beside_it(journal: Journal) -> None:
    journal.append([line("a")])
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in journal.path.parent.glob("journal.db*")}
    assert modes == {"journal.db": 0o600, "journal.db-wal": 0o600, "journal.db-shm": 0o600}


def test_a_journal_that_others_could_read_is_closed_to_them_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    path.chmod(0o644)
    Journal(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_event_that_cannot_be_read_is_passed_over_and_counted(journal: Journal) -> None:
    journal.append([line("a"), line("b"), line("c")])
    with journal.writing() as db:
        db.execute("UPDATE events SET body = ? WHERE seq = 2", (b'{"kind":"from tomorrow"}',))
    assert [e.text for e in journal.read() if isinstance(e, LogLine)] == ["a", "c"]
    assert journal.unreadable == {2}


def test_rounds_that_are_taken_back_leave_with_their_groups_and_evaluations_and_nothing_else(journal: Journal) -> None:
    for number in range(4):
        journal.append([group_of(number, 0), finished(number), line(str(number))])
        journal.append([evaluation(number + 1)])
    assert journal.roll_back(2) == 2
    kept = [(type(e).__name__, getattr(e, "round", None)) for e in journal.read() if not isinstance(e, LogLine)]
    told = [("GroupRecorded", 0), ("RoundFinished", 0), ("Evaluated", 1), ("GroupRecorded", 1), ("RoundFinished", 1)]
    assert kept == [*told, ("Evaluated", 2)]
    assert len(journal.read(kinds=("log",))) == 4
    assert journal.last_round() == 1


def test_the_last_round_is_the_newest_one_or_the_one_before_a_later_opening(journal: Journal) -> None:
    assert journal.last_round() == -1
    journal.append([opened(0), finished(0), finished(1)])
    assert journal.last_round() == 1
    journal.append([opened(7)])
    assert journal.last_round() == 6


def test_a_number_is_never_given_twice_though_the_newest_rows_are_gone(journal: Journal) -> None:
    """A dashboard asks for what came after a number."""
    journal.append([line("a"), finished(0)])
    journal.roll_back(0)
    journal.close()
    again = Journal(journal.path)
    assert again.append([line("b")])[0].seq == 3
    again.close()
