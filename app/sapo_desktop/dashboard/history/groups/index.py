"""The index of a source's groups: one row a group, and a full-text table without the texts. A file of the dashboard's own.

It follows the source: new groups come in, from the newest to the oldest the first time; groups that were dropped or taken
back go. What goes leaves its words in the full-text table (SQLite before 3.43 cannot take them out); when these are most
of it, the index is made again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from sapo_desktop.dashboard.history.groups.query import GroupFilter, flags_of, indexed_text
from sapo_desktop.dashboard.history.groups.sources import GroupSource, Numbered
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import JournalError

STEP = 256
"""Groups that one step takes in: about 40 ms, and a question asked meanwhile waits no longer."""
NEWEST = 2**62
"""Above every group's number."""
_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS tasks (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS groups (seq INTEGER PRIMARY KEY, round INTEGER, task INTEGER, flags INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (text, content='', detail=none, prefix='1 2 3');
"""
_SPARE = 2000
"""Groups that may have gone before the index is made again."""

Direction = Literal["older", "newer"]
Counted = TypeVar("Counted")


@dataclass(frozen=True)
class Page:
    """seqs: newest first. total: groups that fit the filter. indexed, of: how much of the source the index holds."""

    seqs: tuple[int, ...]
    total: int
    indexed: int
    of: int


class GroupIndex:
    """The index of one source. For one thread; several processes may use the same file."""

    def __init__(self, source: GroupSource, folder: Path | None = None) -> None:
        """folder: where indexes are kept; None, or a source without a name: in memory. Raises JournalError."""
        self.source = source
        self.path = folder / f"{_key(source.name)}.db" if folder is not None and source.name else None
        self._looked: int | None = None
        self._counted: dict[str, tuple[object, Any]] = {}
        try:
            self._db = self._usable()
        except BaseException:
            source.close()
            raise

    def _usable(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except (sqlite3.DatabaseError, OSError):  # damaged, or of another version: it is made again
            try:
                self.remove()
                return self._opened()
            except (sqlite3.DatabaseError, OSError) as error:
                raise JournalError(f"Cannot keep an index of the rollouts at {self.path} ({error}).") from error

    def _opened(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            if not self.path.exists():
                _forget_lost(self.path.parent)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(self.path or ":memory:", isolation_level=None, timeout=10.0)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # it can be made again
            db.executescript(_SCHEMA)
            identity = f"{_VERSION} {self.source.identity()}"
            known = db.execute("SELECT value FROM about WHERE name = 'identity'").fetchone()
            if known is not None and known[0] != identity:
                raise sqlite3.DatabaseError("It is the index of another journal.")
            db.execute("INSERT OR IGNORE INTO about VALUES ('identity', ?)", (identity,))
            db.execute("INSERT OR REPLACE INTO about VALUES ('source', ?)", (self.source.name,))
        except BaseException:
            db.close()
            raise
        return db

    def remove(self) -> None:
        """The file goes."""
        for end in ("", "-wal", "-shm"):
            if self.path is not None:
                Path(f"{self.path}{end}").unlink(missing_ok=True)

    def close(self) -> None:
        """The index and its source."""
        self._db.close()
        self.source.close()

    # Following the source

    def step(self) -> bool:
        """Take in some groups; False when all are in. Raises JournalError."""
        with self._writing():
            span = self._about("span")
            low, high = span if span is not None else (NEWEST, 0)
            if span is None:
                taken = self.source.older(NEWEST, STEP)
            else:
                taken = self.source.newer(high, STEP) or self.source.older(low, STEP)
            self._take(taken)
            if taken:
                low, high = min(low, taken[0][0]), max(high, taken[-1][0])
                self._db.execute("INSERT OR REPLACE INTO about VALUES ('span', ?)", (f"{low} {high}",))
        return len(taken) > 0

    def changed(self) -> bool:
        """The source has new groups, or groups of it are gone (these leave the index). Raises JournalError."""
        version, (low, high) = self.source.version(), self._about("span") or (NEWEST, 0)
        if version == self._looked:
            return False
        self._looked = version
        held = self._number("SELECT count(*) FROM groups")
        if held and self.source.count(low, high) != held:
            self._drop(low, high)
            return True
        return bool(self.source.newer(high, 1) or self.source.older(low, 1))

    def _take(self, groups: Sequence[Numbered]) -> None:
        rows, texts = [], []
        for seq, event in groups:
            task = self._task(event.group.question.ref.dataset) if event is not None else None
            rows.append((seq, event.round if event else None, task, flags_of(event) if event else 0))
            if event is not None and task is not None:
                texts.append((seq, indexed_text(event, task)))
        self._db.executemany("INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)", rows)
        self._db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", texts)

    def _task(self, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO tasks (name) VALUES (?)", (name,))
        return self._number("SELECT number FROM tasks WHERE name = ?", name)

    def _drop(self, low: int, high: int) -> None:
        with self._writing():
            kept = set(self.source.numbers(low, high))
            gone = [row for row in self._db.execute("SELECT seq FROM groups").fetchall() if row[0] not in kept]
            self._db.executemany("DELETE FROM groups WHERE seq = ?", gone)
            stale = self._number("SELECT coalesce((SELECT value FROM about WHERE name = 'gone'), 0)") + len(gone)
            if stale > max(_SPARE, len(kept)):
                for table in ("groups", "about WHERE name = 'span'"):
                    self._db.execute(f"DELETE FROM {table}")
                self._db.execute("INSERT INTO words (words) VALUES ('delete-all')")
                stale = 0
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('gone', ?)", (stale,))

    # Asking

    def page(
        self, wanted: GroupFilter, size: int, start: int = NEWEST, direction: Direction = "older", upto: int = NEWEST
    ) -> Page:
        """Groups below (direction older) or above `start`, none above `upto`. Raises JournalError."""
        order, sign = ("DESC", "<") if direction == "older" else ("ASC", ">")
        tables, where, values = self._asked(wanted)
        with self._reading():
            query = f"SELECT groups.seq FROM {tables} WHERE {where} AND {{row}} <= ? AND {{row}} {sign} ?"
            query = f"{query} ORDER BY {{row}} {order} LIMIT ?".format(row=self._row(tables))
            seqs = [row[0] for row in self._db.execute(query, (*values, upto, start, size))]
            total = self._total(wanted, upto)
        held = self._still("held", self._version(), lambda: self._number("SELECT count(*) FROM groups"))
        of = self._still("of", self.source.version(), lambda: self.source.count(0, NEWEST))
        return Page(tuple(seqs if direction == "older" else seqs[::-1]), total, held, of)

    def _version(self) -> tuple[int, int]:
        """Of the index: of what was written here, and by other windows."""
        return self._db.total_changes, self._number("PRAGMA data_version")

    def _still(self, name: str, version: object, count: Callable[[], Counted]) -> Counted:
        """What was counted of that version; all groups are gone through once a version, not with every key."""
        if name not in self._counted or self._counted[name][0] != version:
            self._counted[name] = version, count()
        found: Counted = self._counted[name][1]
        return found

    def _total(self, wanted: GroupFilter, upto: int) -> int:
        tables, where, values = self._asked(wanted)
        stale = self._number("SELECT coalesce((SELECT value FROM about WHERE name = 'gone'), 0)")
        if wanted.words and not stale:
            tables, where = "words", where.replace(_JOINED, "")
        return self._number(f"SELECT count(*) FROM {tables} WHERE {where} AND {self._row(tables)} <= ?", *values, upto)

    def _asked(self, wanted: GroupFilter) -> tuple[str, str, list[object]]:
        """Tables, condition and its values."""
        found = self._db.execute("SELECT number FROM tasks WHERE name = ?", (wanted.task,)).fetchone()
        task = found[0] if found else -1
        if wanted.words:
            return "words CROSS JOIN groups", f"words MATCH ?{_JOINED}", [wanted.match(task)]
        where, values = "flags & ? = ?", [wanted.flags, wanted.flags]
        return ("groups", f"{where} AND task = ?", [*values, task]) if wanted.task else ("groups", where, [*values])

    def _row(self, tables: str) -> str:
        return "words.rowid" if tables.startswith("words") else "groups.seq"

    def every(self, wanted: GroupFilter, upto: int = NEWEST) -> Iterator[GroupRecorded]:
        """All groups that fit, newest first, read a page at a time. Raises JournalError."""
        start = NEWEST
        while seqs := self.page(wanted, STEP, start, upto=upto).seqs:
            yield from (event for _, event in self.source.read(seqs) if event is not None)
            start = seqs[-1]

    def tasks(self) -> list[str]:
        """Every task that has groups, by name."""
        return self._still("tasks", self._version(), self._tasks)

    def _tasks(self) -> list[str]:
        with self._reading():
            query = "SELECT name FROM tasks WHERE number IN (SELECT DISTINCT task FROM groups) ORDER BY name"
            return [row[0] for row in self._db.execute(query)]

    def _number(self, query: str, *values: object) -> int:
        with self._reading():
            return int(self._db.execute(query, values).fetchone()[0])

    def _about(self, name: str) -> tuple[int, int] | None:
        with self._reading():
            row = self._db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        low, high = row[0].split()
        return int(low), int(high)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"Cannot read the index of the rollouts ({error}).") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


_JOINED = " AND groups.seq = words.rowid"


def _key(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _forget_lost(folder: Path) -> None:
    """Remove the indexes of journals that are not there any more: they hold words of theirs."""
    for path in folder.glob("*.db"):
        with suppress(sqlite3.Error, OSError), closing(sqlite3.connect(path)) as db:
            row = db.execute("SELECT value FROM about WHERE name = 'source'").fetchone()
            if row is not None and not Path(row[0]).exists():
                for end in ("", "-wal", "-shm"):
                    Path(f"{path}{end}").unlink(missing_ok=True)
