"""The groups of a run: their sources, the search index, the thread that queries it, and the export."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import sqlite3
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args
from unicodedata import normalize

import msgspec

from sapo_desktop.errors import AppError
from sapo_desktop.streams import json_line
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import JournalError, decode_event_row

# The filter for groups, and what the index stores about a group to apply it.

Reward = Literal["", "all right", "mixed", "none right"]
Source = Literal["", "local", "external"]
Trained = Literal["", "trained on", "not trained on"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
SOURCES: tuple[Source, ...] = get_args(Source)
TRAINED: tuple[Trained, ...] = get_args(Trained)

_BITS = ("local", "external", "all right", "mixed", "none right", "first solved", "trained on", "not trained on")
_BIT = {name: 1 << place for place, name in enumerate(_BITS)}
_FLAG, _TASK = "\ue000", "\ue001"
"""Private-use characters that start the index's own words; they are removed from every text before indexing and searching."""
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = (  # Thai and Lao, Burmese, Khmer, Japanese and Chinese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words. They are indexed as bigrams, and the last character by itself."""
_RUN = re.compile(f"{_UNSPACED}+")
MAX_WORDS = 16


@dataclass(frozen=True)
class GroupFilter:
    """An empty field does not filter. reward "mixed": unequal rewards in the group. text: words; the last may be a prefix."""

    task: str = ""
    source: Source = ""
    reward: Reward = ""
    trained: Trained = ""
    first_solved: bool = False
    text: str = ""

    @property
    def flags(self) -> int:
        """The bits that a group must have set, see flags_of."""
        names = [self.source, self.reward, self.trained, "first solved" if self.first_solved else ""]
        return sum(_BIT[name] for name in names if name)

    @property
    def words(self) -> list[str]:
        """The search words, at most MAX_WORDS."""
        return _WORD.findall(_in_words(self.text))[:MAX_WORDS]

    def match(self, task: int) -> str:
        """The query for the index's full-text table. task: the task's number in the index, used if the filter names a task."""
        *whole, last = self.words
        unfinished = normalize("NFC", self.text)[-1:].isalnum()
        words = [f'"{word}"*' if re.fullmatch(_UNSPACED, word) else f'"{word}"' for word in whole]
        words.append(f'"{last}"*' if unfinished else f'"{last}"')
        if self.task:
            words.append(f'"{_TASK}{task}"')
        return " ".join([*words, *(f'"{_FLAG}{bit}"' for bit in _set(self.flags))])

    def describe(self) -> str:
        """The filter in words; only the active conditions are named."""
        parts = [self.task, self.source, self.reward, self.trained, "first solved" if self.first_solved else ""]
        set_ones = [part for part in (*parts, f"“{self.text}”" if self.text else "") if part]
        return " · ".join(set_ones or ["all tasks", "local and external", "any reward"])


def flags_of(event: GroupRecorded) -> int:
    """The properties of a group other than its task, one bit each."""
    group, rewards = event.group, event.group.rewards
    names = ["external" if group.external else "local", "trained on" if event.trained else "not trained on"]
    names += ["all right"] if min(rewards, default=0.0) >= 1 else []
    names += ["none right"] if max(rewards, default=0.0) <= 0 else []
    names += ["mixed"] if group.nonzero_advantage else []
    names += ["first solved"] if event.first_solved else []
    return sum(_BIT[name] for name in names)


def indexed_text(event: GroupRecorded, task: int) -> str:
    """The text of a group for the full-text table: its own texts, plus its task and flags encoded as words."""
    group = event.group
    texts = [group.question.prompt, *(rollout.text for rollout in group.rollouts)]
    texts += [turn.text for rollout in group.rollouts for turn in rollout.turns if turn.environment]
    own = [f"{_TASK}{task}", *(f"{_FLAG}{bit}" for bit in _set(flags_of(event)))]
    return _in_words(" ".join(texts)).replace("_", " ") + " " + " ".join(own)


def _in_words(text: str) -> str:
    """Normalised text: no characters reserved by the index, accents composed, spaces between words in every script."""
    if text.isascii():  # the common case
        return text
    return _RUN.sub(_pairs, normalize("NFC", text.replace(_FLAG, " ").replace(_TASK, " ")))


def _pairs(run: re.Match[str]) -> str:
    return " ".join(["", *map("".join, zip_longest(run[0], run[0][1:], fillvalue="")), ""])


def _set(flags: int) -> Iterator[int]:
    return (bit for bit in range(len(_BITS)) if flags >> bit & 1)


# Sources of groups: a journal that a node may be writing, or a recording. Both are read-only here.

Numbered = tuple[int, GroupRecorded | None]
"""(number, group). Numbers only rise and are never reused; the group is None if it cannot be read."""


class GroupSource(Protocol):
    """A source of groups. Used by one thread, which need not be the one that created it."""

    @property
    def name(self) -> str:
        """Identifies the source; the same in every process."""
        ...

    def again(self) -> GroupSource:
        """A new object for the same source, for use in another thread."""
        ...

    def identity(self) -> str:
        """Identifies the content: a different journal under the same name has a different identity. Raises JournalError."""
        ...

    def version(self) -> int:
        """A number that changes whenever the source changes. Raises JournalError."""
        ...

    def newer(self, after: int, limit: int) -> list[Numbered]:
        """The oldest `limit` groups with a number above `after`, in order. Raises JournalError."""
        ...

    def older(self, before: int, limit: int) -> list[Numbered]:
        """The newest `limit` groups with a number below `before`, in order. Raises JournalError."""
        ...

    def count(self, first: int, last: int) -> int:
        """How many groups have numbers from `first` to `last`. Raises JournalError."""
        ...

    def numbers(self, first: int, last: int) -> list[int]:
        """The group numbers from `first` to `last`. Raises JournalError."""
        ...

    def read(self, numbers: Sequence[int]) -> list[Numbered]:
        """The groups with these numbers, in this order; missing ones are left out. Raises JournalError."""
        ...

    def close(self) -> None:
        """Close any open files."""
        ...


class JournalGroups:
    """The groups of a journal.db."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._open: sqlite3.Connection | None = None

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self.path)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._open is None:
            if not self.path.exists():
                raise JournalError(f"There is no journal at {self.path}.")
            self._open = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
        return self._open

    def _rows(self, query: str, *values: object) -> list[tuple[int, bytes]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(
                f"Cannot read the journal {self.path} ({error}). Try: sapo-desktop runs check --repair"
            ) from error

    def again(self) -> GroupSource:
        """A copy with a separate connection."""
        return JournalGroups(self.path)

    def identity(self) -> str:
        """Derived from the first event, which is never rolled back."""
        rows = self._rows("SELECT seq, body FROM events ORDER BY seq LIMIT 1")
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def version(self) -> int:
        """SQLite's data_version: counts commits by other connections."""
        return self._rows("PRAGMA data_version")[0][0]

    def newer(self, after: int, limit: int) -> list[Numbered]:
        """See GroupSource."""
        query = "SELECT seq, body FROM events WHERE kind = 'group' AND seq > ? ORDER BY seq LIMIT ?"
        return _read(self._rows(query, after, limit))

    def older(self, before: int, limit: int) -> list[Numbered]:
        """See GroupSource."""
        query = "SELECT seq, body FROM events WHERE kind = 'group' AND seq < ? ORDER BY seq DESC LIMIT ?"
        return _read(self._rows(query, before, limit))[::-1]

    def count(self, first: int, last: int) -> int:
        """See GroupSource."""
        query = "SELECT count(*) FROM events WHERE kind = 'group' AND seq BETWEEN ? AND ?"
        return self._rows(query, first, last)[0][0]

    def numbers(self, first: int, last: int) -> list[int]:
        """See GroupSource."""
        query = "SELECT seq FROM events WHERE kind = 'group' AND seq BETWEEN ? AND ?"
        return [row[0] for row in self._rows(query, first, last)]

    def read(self, numbers: Sequence[int]) -> list[Numbered]:
        """See GroupSource."""
        marks = ",".join("?" * len(numbers))
        rows = dict(self._rows(f"SELECT seq, body FROM events WHERE kind = 'group' AND seq IN ({marks})", *numbers))
        return _read([(number, rows[number]) for number in numbers if number in rows])

    def close(self) -> None:
        """See GroupSource."""
        if self._open is not None:
            self._open.close()
            self._open = None


class RecordedGroups:
    """The groups in a list of events, numbered by position, starting at 1."""

    def __init__(self, events: Sequence[object]) -> None:
        self._groups = {place: event for place, event in enumerate(events, 1) if isinstance(event, GroupRecorded)}
        self._numbers = list(self._groups)

    @property
    def name(self) -> str:
        """Empty: the index of a recording is kept in memory."""
        return ""

    def again(self) -> GroupSource:
        """The same object: it is immutable."""
        return self

    def identity(self) -> str:
        """Constant: a list in memory cannot be swapped for another."""
        return "recording"

    def version(self) -> int:
        """Constant: the list does not change."""
        return 0

    def newer(self, after: int, limit: int) -> list[Numbered]:
        """See GroupSource."""
        start = bisect_right(self._numbers, after)
        return self.read(self._numbers[start : start + limit])

    def older(self, before: int, limit: int) -> list[Numbered]:
        """See GroupSource."""
        end = bisect_left(self._numbers, before)
        return self.read(self._numbers[max(end - limit, 0) : end])

    def count(self, first: int, last: int) -> int:
        """See GroupSource."""
        return len(self.numbers(first, last))

    def numbers(self, first: int, last: int) -> list[int]:
        """See GroupSource."""
        return self._numbers[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]

    def read(self, numbers: Sequence[int]) -> list[Numbered]:
        """See GroupSource."""
        groups = [(number, self._groups[number]) for number in numbers if number in self._groups]
        return [(number, msgspec.structs.replace(event, seq=number)) for number, event in groups]

    def close(self) -> None:
        """Nothing is open."""


def _read(rows: Sequence[tuple[int, bytes]]) -> list[Numbered]:
    groups: list[Numbered] = []
    for number, body in rows:
        event = decode_event_row(body)
        groups.append(
            (number, msgspec.structs.replace(event, seq=number) if isinstance(event, GroupRecorded) else None)
        )
    return groups


# The index of a source's groups: one row per group, and a full-text table that does not store the texts. It is a separate
# file that belongs to the dashboard.
#
# It follows the source: new groups are added (the first time from newest to oldest), and groups that were dropped or rolled
# back are removed. The words of a removed group stay in the full-text table (SQLite before 3.43 cannot delete them); once
# they make up most of it, the index is rebuilt.

STEP = 256
"""Groups indexed per step: about 40 ms, so a query that arrives meanwhile waits no longer than that."""
NEWEST = 2**62
"""Larger than every group's number."""
_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS tasks (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS groups (seq INTEGER PRIMARY KEY, round INTEGER, task INTEGER, flags INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (text, content='', detail=none, prefix='1 2 3');
"""
_SPARE = 2000
"""Removed groups tolerated before the index is rebuilt."""

Direction = Literal["older", "newer"]
Counted = TypeVar("Counted")


@dataclass(frozen=True)
class GroupPage:
    """seqs: newest first. total: groups that match the filter. indexed, of: groups in the index, and in the source."""

    seqs: tuple[int, ...]
    total: int
    indexed: int
    of: int


class GroupIndex:
    """The index of one source. Not thread-safe; several processes may use the same file."""

    def __init__(self, source: GroupSource, folder: Path | None = None) -> None:
        """folder: where index files are kept; None, or a source without a name: the index is in memory. Raises JournalError."""
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
        except (sqlite3.DatabaseError, OSError):  # damaged, or from another version: rebuild it
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
            db.execute("PRAGMA synchronous=OFF")  # losing it is harmless: it can be rebuilt
            db.executescript(_SCHEMA)
            identity = f"{_VERSION} {self.source.identity()}"
            stored = db.execute("SELECT value FROM about WHERE name = 'identity'").fetchone()
            if stored is not None and stored[0] != identity:
                raise sqlite3.DatabaseError("It is the index of another journal.")
            db.execute("INSERT OR IGNORE INTO about VALUES ('identity', ?)", (identity,))
            db.execute("INSERT OR REPLACE INTO about VALUES ('source', ?)", (self.source.name,))
        except BaseException:
            db.close()
            raise
        return db

    def remove(self) -> None:
        """Delete the index file."""
        for end in ("", "-wal", "-shm"):
            if self.path is not None:
                Path(f"{self.path}{end}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the index and its source."""
        self._db.close()
        self.source.close()

    # Following the source

    def step(self) -> bool:
        """Index some more groups; False when all are indexed. Raises JournalError."""
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
        """Whether the source has new groups or has lost some (those are removed from the index). Raises JournalError."""
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
            current = set(self.source.numbers(low, high))
            gone = [row for row in self._db.execute("SELECT seq FROM groups").fetchall() if row[0] not in current]
            self._db.executemany("DELETE FROM groups WHERE seq = ?", gone)
            stale = self._number("SELECT coalesce((SELECT value FROM about WHERE name = 'gone'), 0)") + len(gone)
            if stale > max(_SPARE, len(current)):
                for table in ("groups", "about WHERE name = 'span'"):
                    self._db.execute(f"DELETE FROM {table}")
                self._db.execute("INSERT INTO words (words) VALUES ('delete-all')")
                stale = 0
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('gone', ?)", (stale,))

    # Queries

    def page(
        self, wanted: GroupFilter, size: int, start: int = NEWEST, direction: Direction = "older", upto: int = NEWEST
    ) -> GroupPage:
        """One page of groups with numbers below (direction "older") or above `start`, none above `upto`. Raises JournalError."""
        order, sign = ("DESC", "<") if direction == "older" else ("ASC", ">")
        tables, where, values = self._asked(wanted)
        with self._reading():
            query = f"SELECT groups.seq FROM {tables} WHERE {where} AND {{row}} <= ? AND {{row}} {sign} ?"
            query = f"{query} ORDER BY {{row}} {order} LIMIT ?".format(row=self._row(tables))
            seqs = [row[0] for row in self._db.execute(query, (*values, upto, start, size))]
            total = self._total(wanted, upto)
        held = self._still("held", self._version(), lambda: self._number("SELECT count(*) FROM groups"))
        of = self._still("of", self.source.version(), lambda: self.source.count(0, NEWEST))
        return GroupPage(tuple(seqs if direction == "older" else seqs[::-1]), total, held, of)

    def _version(self) -> tuple[int, int]:
        """The version of the index: changes with writes from here and from other windows."""
        return self._db.total_changes, self._number("PRAGMA data_version")

    def _still(self, name: str, version: object, count: Callable[[], Counted]) -> Counted:
        """The cached count for that version: counting scans all groups, so it runs once per version, not at every key press."""
        if name not in self._counted or self._counted[name][0] != version:
            self._counted[name] = version, count()
        counted: Counted = self._counted[name][1]
        return counted

    def _total(self, wanted: GroupFilter, upto: int) -> int:
        tables, where, values = self._asked(wanted)
        stale = self._number("SELECT coalesce((SELECT value FROM about WHERE name = 'gone'), 0)")
        if wanted.words and not stale:
            tables, where = "words", where.replace(_JOINED, "")
        return self._number(f"SELECT count(*) FROM {tables} WHERE {where} AND {self._row(tables)} <= ?", *values, upto)

    def _asked(self, wanted: GroupFilter) -> tuple[str, str, list[object]]:
        """The tables, the WHERE condition and its values."""
        row = self._db.execute("SELECT number FROM tasks WHERE name = ?", (wanted.task,)).fetchone()
        task = row[0] if row else -1
        if wanted.words:
            return "words CROSS JOIN groups", f"words MATCH ?{_JOINED}", [wanted.match(task)]
        where, values = "flags & ? = ?", [wanted.flags, wanted.flags]
        return ("groups", f"{where} AND task = ?", [*values, task]) if wanted.task else ("groups", where, [*values])

    def _row(self, tables: str) -> str:
        return "words.rowid" if tables.startswith("words") else "groups.seq"

    def every(self, wanted: GroupFilter, upto: int = NEWEST) -> Iterator[GroupRecorded]:
        """All groups that match, newest first, read one page at a time. Raises JournalError."""
        start = NEWEST
        while seqs := self.page(wanted, STEP, start, upto=upto).seqs:
            yield from (event for _, event in self.source.read(seqs) if event is not None)
            start = seqs[-1]

    def tasks(self) -> list[str]:
        """The names of all tasks that have groups, sorted."""
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
    """Remove the indexes of deleted journals, since they still contain words from them."""
    for path in folder.glob("*.db"):
        with suppress(sqlite3.Error, OSError), closing(sqlite3.connect(path)) as db:
            row = db.execute("SELECT value FROM about WHERE name = 'source'").fetchone()
            if row is not None and not Path(row[0]).exists():
                for end in ("", "-wal", "-shm"):
                    Path(f"{path}{end}").unlink(missing_ok=True)


# Export: the groups that match a filter as JSON lines, which are the journal's events in plain ASCII.


def build_group_index(
    source: GroupSource, folder: Path | None, told: Callable[[int], None] = lambda _: None
) -> GroupIndex:
    """Build the complete index. told: called after each step with the number of groups indexed. Raises JournalError."""
    index = GroupIndex(source, folder)
    try:
        index.changed()
        done = 0
        while index.step():
            done += 1
            told(done)
    except BaseException:
        index.close()
        raise
    return index


def export_groups(source: GroupSource, folder: Path | None, wanted: GroupFilter, path: Path, upto: int = NEWEST) -> int:
    """Like write_groups(), with an index built for the purpose."""
    index = build_group_index(source, folder)
    try:
        return write_groups(index, wanted, path, upto)
    finally:
        index.close()


def write_groups(index: GroupIndex, wanted: GroupFilter, path: Path, upto: int = NEWEST) -> int:
    """Write a new file, private to its owner; the number of groups. Raises AppError, JournalError; then no file is left."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                return sum(file.write(json_line(event) + "\n") > 0 for event in index.every(wanted, upto))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise AppError(f"{path} exists already. Name another file.") from error
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}). Name a file in a folder of your own.") from error


# A thread that queries the index, so that no key press waits for the disk; between queries it indexes more of the journal.

PAGE = 60
"""Groups on a page."""
IDLE_S = 1.0
"""Seconds between checks whether the journal has changed."""
_TELL_S = 0.25
"""Seconds between updates of the first page while the index grows."""


@dataclass(frozen=True)
class GroupQuery:
    """A request for one page of matching groups: below (older) or above the number `start`, none above `upto`."""

    filter: GroupFilter = field(default_factory=GroupFilter)
    start: int = NEWEST
    direction: Direction = "older"
    upto: int = NEWEST

    @property
    def first(self) -> bool:
        """Whether this is the page of the newest groups, which changes as the journal grows."""
        return self.start == NEWEST and self.direction == "older"


@dataclass(frozen=True)
class GroupQueryResult:
    """groups: newest first. total: all matches. indexed, of: groups indexed, of all. tasks: known ones. problem: "" if none."""

    wish: GroupQuery
    groups: tuple[GroupRecorded, ...] = ()
    total: int = 0
    indexed: int = 0
    of: int = 0
    tasks: tuple[str, ...] = ()
    problem: str = ""


class _Nothing:
    """No request arrived."""


class GroupReader:
    """Answers only the newest request: a person who keeps typing does not wait for earlier queries."""

    def __init__(self, open_index: Callable[[], GroupIndex], told: Callable[[GroupQueryResult], None]) -> None:
        """open_index and told are called in the reader's thread."""
        self._open, self._told = open_index, told
        self._wishes: queue.SimpleQueue[GroupQuery | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def ask(self, wish: GroupQuery) -> None:
        """Answer this request as soon as possible, unless a newer one replaces it."""
        self._wishes.put(wish)

    def close(self) -> None:
        """End the thread once its current work is done."""
        self._wishes.put(None)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _run(self) -> None:
        """If the index does not open (on a full disk, say), try again from time to time."""
        wish: GroupQuery | None = GroupQuery()
        while wish is not None:
            try:
                index = self._open()
            except JournalError as error:
                self._told(GroupQueryResult(wish, problem=str(error)))
                newer = self._next(IDLE_S)
                wish = wish if isinstance(newer, _Nothing) else newer
                continue
            try:
                return self._serve(index, wish)
            finally:
                index.close()

    def _serve(self, index: GroupIndex, wish: GroupQuery) -> None:
        growing, told_at, pause = True, 0.0, 0.0
        request: GroupQuery | None = wish
        while request is not None:
            wish = request
            self._answer(index, wish)
            told_at = time.monotonic()
            while isinstance(newer := self._next(pause), _Nothing):
                began = time.monotonic()
                grew, growing = self._follow(index, growing)
                pause = time.monotonic() - began if growing else IDLE_S
                done = grew and not growing
                if grew and wish.first and (done or time.monotonic() - told_at > _TELL_S):
                    self._answer(index, wish)
                    told_at = time.monotonic()
            request = newer

    def _next(self, wait: float) -> GroupQuery | _Nothing | None:
        """The newest request, None when the reader is closed, or _Nothing after `wait` seconds."""
        newest: GroupQuery | _Nothing | None = _Nothing()
        with suppress(queue.Empty):
            newest = self._wishes.get(timeout=max(wait, 0.001))
            while newest is not None:
                newest = self._wishes.get_nowait()
        return newest

    def _follow(self, index: GroupIndex, growing: bool) -> tuple[bool, bool]:
        """(whether something changed, whether there is more to index)."""
        try:
            if not growing:
                changed = index.changed()
                return changed, changed and index.step()
            return True, index.step()
        except JournalError:  # the journal is being replaced, or another window holds the index: retry at the next look
            return False, False

    def _answer(self, index: GroupIndex, wish: GroupQuery) -> None:
        try:
            page = index.page(wish.filter, PAGE, wish.start, wish.direction, wish.upto)
            groups = tuple(event for _, event in index.source.read(page.seqs) if event is not None)
            self._told(GroupQueryResult(wish, groups, page.total, page.indexed, page.of, tuple(index.tasks())))
        except JournalError as error:
            self._told(GroupQueryResult(wish, problem=str(error)))
