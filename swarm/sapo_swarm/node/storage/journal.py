"""The append-only record of a run: one SQLite file in WAL mode, one row an event.

A killed process loses nothing that `append` returned for. Reads and writes may come from different threads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from sapo_swarm.events import EPHEMERAL, Event, RoundFinished, RunStarted, decode, encode

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    round INTEGER,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, seq);
"""


PRUNED_ROWS = 128
"""Groups that one step of pruning drops: a writer waits for a few milliseconds at most."""
KEPT_ROUNDS = 10
"""Of old rounds, the groups of every tenth one stay."""
_FIRST = '%"first_solved":true%'
_OLD = "kind = 'group' AND seq > ? AND round < ? AND round % ? != 0 AND CAST(body AS TEXT) NOT LIKE ?"


class JournalError(Exception):
    """The journal cannot be read or written; the message says what to do."""


class Journal:
    """Stored events in order of their sequence number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pruned = 0
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
            self.last_seq = int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
        except sqlite3.Error as error:
            raise JournalError(
                f"Cannot open the journal {path} ({error}). Check that the disk has room and the folder is yours."
            ) from error

    def append(self, events: Iterable[Event]) -> list[Event]:
        """Store all events or none; returns them with their sequence numbers. Raises JournalError."""
        stored: list[Event] = []
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for event in events:
                    if isinstance(event, EPHEMERAL):
                        raise TypeError(f"{type(event).__name__} is ephemeral and is not stored.")
                    row = self._db.execute(
                        "INSERT INTO events (kind, round, body) VALUES (?, ?, ?)",
                        (_kind(event), getattr(event, "round", None), encode(event)),
                    )
                    stored.append(msgspec.structs.replace(event, seq=row.lastrowid))
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise JournalError(
                        f"Cannot write the journal {self.path} ({error}). Free some disk space."
                    ) from error
                raise
        if stored:
            self.last_seq = stored[-1].seq
        return stored

    def prune(self, before: int) -> int:
        """Drop the oldest PRUNED_ROWS groups of rounds before `before`; how many there were.

        The groups of every KEPT_ROUNDS-th round and first successes stay, and so does everything that is no group.
        The file does not shrink; what comes later takes the room. Raises JournalError.
        """
        with self._lock:
            try:
                values = (self._pruned, before, KEPT_ROUNDS, _FIRST, PRUNED_ROWS)
                rows = self._db.execute(f"SELECT seq FROM events WHERE {_OLD} ORDER BY seq LIMIT ?", values).fetchall()
                if rows:
                    values = (self._pruned, before, KEPT_ROUNDS, _FIRST, rows[-1][0])
                    self._db.execute(f"DELETE FROM events WHERE {_OLD} AND seq <= ?", values)
                    self._pruned = rows[-1][0]
            except sqlite3.Error as error:
                raise JournalError(f"Cannot write the journal {self.path} ({error}). Free some disk space.") from error
        return len(rows)

    def read(self, after: int = 0, kinds: Sequence[str] = (), tail: int = 0) -> list[Event]:
        """Stored events with seq > after, only of these kinds, only the last `tail` of them, oldest first."""
        where, values = "seq > ?", [after, *kinds]
        if kinds:
            where += f" AND kind IN ({','.join('?' * len(kinds))})"
        query = f"SELECT seq, body FROM events WHERE {where} ORDER BY seq {'DESC LIMIT ?' if tail else ''}"
        if tail:
            values.append(tail)
        with self._lock:
            rows = self._db.execute(query, values).fetchall()
        if tail:
            rows.reverse()
        return [msgspec.structs.replace(decode(body), seq=seq) for seq, body in rows]

    def last_round(self) -> int:
        """The newest finished round since the run was last opened at or before it; -1 when there is none."""
        for event in reversed(self.read(kinds=("round", "run_started"))):
            if isinstance(event, RoundFinished):
                return event.round
            if isinstance(event, RunStarted) and event.round > 0:
                return event.round - 1
        return -1

    def close(self) -> None:
        with self._lock:
            self._db.close()


def read_only(path: Path, kinds: Sequence[str] = (), tail: int = 0) -> list[Event]:
    """Events of a journal that another process may have open. Raises JournalError when it is missing or broken."""
    if not path.exists():
        raise JournalError(f"There is no journal at {path}.")
    journal = Journal(path)
    try:
        return journal.read(kinds=kinds, tail=tail)
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise JournalError(f"The journal {path} is damaged ({error}).") from error
    finally:
        journal.close()


def _kind(event: Event) -> str:
    return str(type(event).__struct_config__.tag)
