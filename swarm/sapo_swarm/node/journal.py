"""The record of a model: one SQLite file with one row per event, its check and repair, and the bus that passes events on."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from sapo_swarm.errors import SwarmError
from sapo_swarm.events import (
    EPHEMERAL,
    CheckpointSaved,
    Event,
    GroupRecorded,
    RoundFinished,
    RunStarted,
    SwarmUpdated,
    decode_event,
    encode_event,
)
from sapo_swarm.types import UNREADABLE

# The record of a model: one SQLite file in WAL mode, one row per event, readable only by its owner.
#
# A killed process loses nothing for which `append` returned. Reads and writes may come from different threads. Old
# records are thinned (downsampling); an event that cannot be read is skipped and counted.

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    round INTEGER,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, seq);
CREATE INDEX IF NOT EXISTS rounds_by_number ON events (round) WHERE kind = 'round';
CREATE INDEX IF NOT EXISTS groups_by_round ON events (round) WHERE kind = 'group';
CREATE TABLE IF NOT EXISTS thinned (what TEXT PRIMARY KEY, upto INTEGER NOT NULL);
"""
_ZSTD = b"\x28\xb5\x2f\xfd"
"""How a compressed body begins; JSON begins with a brace."""
LARGEST_EVENT = 64 * 2**20
ROLLED_BACK = ("round", "group", "first_success", "evaluation", "examples")
"""Kinds of events that belong to a round and go when it is rolled back."""


class JournalError(SwarmError):
    """The journal cannot be read or written; the message says what to do."""


class Journal:
    """Stored events in order of their sequence number. unreadable: rows that the last reads skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable: set[int] = set()
        self._lock = threading.Lock()
        try:
            _private(path)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(_refused(path, error)) from error
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA fullfsync=ON")  # macOS; at checkpoints only, to spare the drive
            self._db.execute("PRAGMA wal_autocheckpoint=4000")  # 16 MB: pages that change often are written less often
            self._db.executescript(_SCHEMA)
            last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
            self.last_seq = int(last[0]) if last else 0
        except sqlite3.Error as error:
            self._db.close()
            raise JournalError(_refused(path, error)) from error

    def append(self, events: Iterable[Event]) -> list[Event]:
        """Store all events or none; returns them with their sequence numbers. Raises JournalError."""
        stored: list[Event] = []
        with self.writing() as db:
            for event in events:
                if isinstance(event, EPHEMERAL):
                    raise TypeError(f"{type(event).__name__} is ephemeral and is not stored.")
                values = (_kind(event), getattr(event, "round", None), _stored(event))
                row = db.execute("INSERT INTO events (kind, round, body) VALUES (?, ?, ?)", values)
                stored.append(msgspec.structs.replace(event, seq=row.lastrowid))
        if stored:
            self.last_seq = stored[-1].seq
        return stored

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, all or nothing. Raises JournalError when the disk refuses."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise JournalError(
                        f"Cannot write the journal {self.path} ({error}). Free some disk space."
                    ) from error
                raise

    def read(self, after: int = 0, kinds: Sequence[str] = (), tail: int = 0) -> list[Event]:
        """Stored events with seq > after, only of these kinds, only the last `tail` of them, oldest first.

        Raises JournalError.
        """
        where, values = "seq > ?", [after, *kinds]
        if kinds:
            where += f" AND kind IN ({','.join('?' * len(kinds))})"
        query = f"SELECT seq, body FROM events WHERE {where} ORDER BY seq {'DESC LIMIT ?' if tail else ''}"
        if tail:
            values.append(tail)
        with self._reading() as db:
            rows = db.execute(query, values).fetchall()
        if tail:
            rows.reverse()
        return self._decoded(rows)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise JournalError(
                    f"Cannot read the journal {self.path} ({error}). Try: sapo-desktop runs check --repair"
                ) from error

    def _decoded(self, rows: Sequence[tuple[int, bytes]]) -> list[Event]:
        events: list[Event] = []
        for seq, body in rows:
            event = decode_event_row(body)
            if event is None:
                self.unreadable.add(seq)
            else:
                events.append(msgspec.structs.replace(event, seq=seq))
        return events

    def last_round(self) -> int:
        """The newest finished round since the model was last opened at or before it; -1 if there is none."""
        query = "SELECT kind, round, body FROM events WHERE kind IN ('round', 'run_started') ORDER BY seq DESC"
        with self._reading() as db:
            for kind, number, body in db.execute(query):
                if kind == "round" and number is not None:
                    return int(number)
                opened = decode_event_row(body)
                if isinstance(opened, RunStarted) and opened.round > 0:
                    return opened.round - 1
        return -1

    def newest(self, kind: str) -> Event | None:
        """The newest readable event of a kind."""
        with self._reading() as db:
            for seq, body in db.execute("SELECT seq, body FROM events WHERE kind = ? ORDER BY seq DESC", (kind,)):
                event = decode_event_row(body)
                if event is not None:
                    return msgspec.structs.replace(event, seq=seq)
        return None

    def roll_back(self, rounds_done: int) -> int:
        """Remove the events of round `rounds_done` (counted from 0) and later; returns how many rounds that were.

        An evaluation (and a reading of the examples phase) is numbered by the rounds done before it, so one after exactly
        `rounds_done` stays. Raises JournalError.
        """
        names = ",".join("?" * len(ROLLED_BACK))
        with self.writing() as db:
            ahead = db.execute(
                "SELECT count(*) FROM events WHERE kind = 'round' AND round >= ?", (rounds_done,)
            ).fetchone()
            db.execute(
                f"DELETE FROM events WHERE kind IN ({names}) AND round >= ? + (kind IN ('evaluation', 'examples'))",
                (*ROLLED_BACK, rounds_done),
            )
            db.execute("UPDATE thinned SET upto = min(upto, ?)", (rounds_done,))  # recorded again, thinned again
        return int(ahead[0])

    def size(self) -> int:
        """Bytes of the file and its log."""
        return sum(p.stat().st_size for p in self.path.parent.glob(f"{self.path.name}*"))

    def close(self) -> None:
        """Close the file; everything appended is in it."""
        with self._lock:
            self._db.close()


def read_only(path: Path, kinds: Sequence[str] = (), tail: int = 0) -> list[Event]:
    """Readable events of a journal that another process may have open. Raises JournalError if it is missing or broken."""
    if not path.exists():
        raise JournalError(f"There is no journal at {path}.")
    journal = Journal(path)
    try:
        return journal.read(kinds=kinds, tail=tail)
    finally:
        journal.close()


def restored_rounds(events: Iterable[Event]) -> dict[int, int]:
    """Rounds done after each step back -> rounds of the checkpoint whose weights it restored. A step whose checkpoint was
    lost, so that the round was trained instead, does not count. events: of a journal, in order."""
    steps: dict[int, int] = {}
    for event in events:
        if isinstance(event, CheckpointSaved) and event.restored >= 0:
            steps[event.round] = event.restored
        elif isinstance(event, RoundFinished):
            steps.pop(event.round + 1, None)
    return steps


def leads_here(events: Sequence[Event]) -> Callable[[int], bool]:
    """Whether the current weights are those after a given number of rounds, or descend from them. events: of a journal, in
    order."""
    ends, last = list[tuple[int, float]](), float("inf")
    steps = restored_rounds(events)
    for number in sorted(steps, reverse=True):
        if number <= last:
            ends.append((number, last))
            last = steps[number]
    ends.append((0, last))
    return lambda rounds: any(first <= rounds <= end for first, end in ends)


def decode_event_row(body: object) -> Event | None:
    """The event of a row; None if it is no event of this version (in a damaged file a row can hold anything)."""
    if not isinstance(body, bytes):
        return None
    try:
        packed = body[: len(_ZSTD)] == _ZSTD
        return decode_event(zstandard.decompress(body, max_output_size=LARGEST_EVENT) if packed else body)
    except (zstandard.ZstdError, *UNREADABLE):
        return None


def _stored(event: Event) -> bytes:
    """A row's body: JSON, compressed for groups, which are the most numerous (to a third of the bytes), and for the swarm
    with all its peers. First successes stay uncompressed: thinning finds them by their text."""
    plain = encode_event(event)
    packs = isinstance(event, SwarmUpdated) or (isinstance(event, GroupRecorded) and not event.first_solved)
    return zstandard.compress(plain, 3) if packs else plain


def _refused(path: Path, error: Exception) -> str:
    return f"Cannot open the journal {path} ({error}). Check that the disk has room and the folder is yours."


def _private(path: Path) -> None:
    """Make the file readable by its owner alone; SQLite gives the files beside it the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _kind(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


# Checks a journal and repairs whatever can be repaired without losing anything: the core of `runs check [--repair]`.


@dataclass(frozen=True, slots=True)
class JournalReport:
    """events: readable ones. unreadable: rows that are no event of this version. rounds: finished rounds on record. missing:
    rounds between the first and the last that are not on record. repeated: rounds recorded twice. damage: what SQLite says
    about the file, "" if it is whole. aside: where a repair put what it took out, None if it took out nothing."""

    events: int
    unreadable: int
    rounds: int
    missing: int
    repeated: int
    bytes: int
    damage: str = ""
    aside: Path | None = None

    @property
    def sound(self) -> bool:
        """Nothing to repair."""
        return not (self.unreadable or self.repeated or self.damage)

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        if self.sound:
            gaps = f"; of {self.missing} rounds nothing is told" if self.missing else ""
            return f"The journal is sound: {self.events:,} events, {self.rounds:,} rounds{gaps}."
        parts = [
            f"{self.unreadable:,} events cannot be read" if self.unreadable else "",
            f"{self.repeated:,} rounds are told twice" if self.repeated else "",
            f"the file is damaged ({self.damage})" if self.damage else "",
        ]
        return f"{'; '.join(p for p in parts if p)}. Readable: {self.events:,} events, {self.rounds:,} rounds."


def check_journal(path: Path) -> JournalReport:
    """Read every row without changing anything. Raises JournalError if there is no such file or it is no database."""
    if not path.exists():
        raise JournalError(f"There is no journal at {path}.")
    damage, rows = "", 0
    unreadable = 0
    seen: dict[int, int] = {}
    back: set[int] = set()
    covered = 0
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            damage = "" if verdict == "ok" else str(verdict)
            for _, body in _rows(db):
                event = decode_event_row(body)
                rows += event is not None
                unreadable += event is None
                if isinstance(event, CheckpointSaved) and event.restored >= 0:
                    back.add(event.round - 1)
                if isinstance(event, RoundFinished):
                    covered += event.covers
                    seen[event.round] = seen.get(event.round, 0) + 1
    except sqlite3.Error as error:
        damage = damage or str(error)
    repeated = sum(count - 1 for count in seen.values())
    last = max(seen, default=-1)
    steps_back = sum(number < last and number not in seen for number in back)  # they count as rounds but train nothing
    missing = max(0, last + 1 - covered + repeated - steps_back)
    return JournalReport(rows, unreadable, covered, missing, repeated, path.stat().st_size, damage)


def repair_journal(path: Path) -> JournalReport:
    """Write what can be read into a new journal, which replaces the old one; the old file stays beside it.

    If a round was recorded twice, the newer record counts. A sound journal is left alone. A kill at any moment leaves a
    journal. Call while no node runs. Raises JournalError.
    """
    before = check_journal(path)
    if before.sound:
        return before
    fresh = path.with_name(f"{path.name}.repaired")
    aside = _free_name(path.with_name(f"{path.name}.before-repair"))
    for old in path.parent.glob(f"{fresh.name}*"):
        old.unlink()
    try:
        Journal(fresh).close()
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(fresh)) as target:
            _copy(source, target)
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _second_name(path, aside)
        with suppress(FileNotFoundError):  # SQLite would read an old log into the new file
            _log_of(path).rename(_log_of(aside))
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        fresh.replace(path)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            _log_of(aside).rename(_log_of(path))
        aside.unlink(missing_ok=True)
        raise JournalError(f"Cannot repair {path} ({error}). It is as it was.") from error
    report = check_journal(path)
    return JournalReport(
        report.events,
        before.unreadable,
        report.rounds,
        report.missing,
        before.repeated,
        report.bytes,
        before.damage,
        aside,
    )


def _second_name(path: Path, name: Path) -> None:
    """Give the file a second name; a copy if the file system has no hard links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copy2(path, name)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    newest = _newest_tellings(source)
    with target:
        for seq, body in _rows(source):
            event = decode_event_row(body)
            if event is None or (isinstance(event, RoundFinished) and newest[event.round] != seq):
                continue
            kind, number = str(type(event).__struct_config__.tag), getattr(event, "round", None)
            target.execute("INSERT INTO events (seq, kind, round, body) VALUES (?, ?, ?, ?)", (seq, kind, number, body))


def _newest_tellings(db: sqlite3.Connection) -> dict[int, int]:
    found: dict[int, int] = {}
    for seq, body in _rows(db):
        event = decode_event_row(body)
        if isinstance(event, RoundFinished):
            found[event.round] = seq
    return found


def _rows(db: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Rows in order, as many as a damaged file yields."""
    try:
        for seq, body in db.execute("SELECT seq, body FROM events ORDER BY seq"):
            yield int(seq), body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
    except sqlite3.DatabaseError:
        return


def _free_name(path: Path) -> Path:
    number, candidate = 1, path
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


# From the node to all subscribers: stores what must last, passes the rest on, never waits for a slow reader.

QUEUE_LIMIT = 4096
"""Events a subscriber may lag behind; beyond that it is cut off and may come back with after=SEQ."""


class EventBus:
    """Publishes events to the journal and to subscribers, in one order."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._clock = clock
        self._order = asyncio.Lock()
        self._subscribers: set[asyncio.Queue[Event | None]] = set()

    async def publish(self, *events: Event) -> None:
        """Store (in one transaction) and pass on. Raises JournalError when the disk refuses; then no subscriber saw them."""
        stamped = [msgspec.structs.replace(e, time=e.time or self._clock()) for e in events]
        async with self._order:
            stored = await asyncio.to_thread(self._journal.append, stamped)
            self._hand_on(stored)

    def stream(self, event: Event) -> None:
        """Pass an event on at once without storing it: an ephemeral one, or one that the disk refused. Call from the event
        loop."""
        self._hand_on([msgspec.structs.replace(event, time=self._clock())])

    @asynccontextmanager
    async def subscribe(
        self, after: int, kinds: Sequence[str] = (), tail: int = 0
    ) -> AsyncIterator[tuple[list[Event], asyncio.Queue[Event | None]]]:
        """The stored events asked for and a queue of everything after them, with no gap and no repetition.

        None in the queue: the bus closed, or this subscriber lagged too far behind.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_LIMIT + 1)
        async with self._order:
            past = await asyncio.to_thread(self._journal.read, after, kinds, tail)
            self._subscribers.add(queue)
        try:
            yield past, queue
        finally:
            self._subscribers.discard(queue)

    def close(self) -> None:
        """End every subscription."""
        for queue in list(self._subscribers):
            self._cut_off(queue)

    def _hand_on(self, events: Iterable[Event]) -> None:
        for event in events:
            for queue in list(self._subscribers):
                if queue.qsize() < QUEUE_LIMIT:
                    queue.put_nowait(event)
                elif not isinstance(event, EPHEMERAL):
                    self._cut_off(queue)

    def _cut_off(self, queue: asyncio.Queue[Event | None]) -> None:
        self._subscribers.discard(queue)
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)
