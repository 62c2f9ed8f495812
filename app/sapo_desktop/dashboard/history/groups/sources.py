"""Where groups come from: a journal that a node may be writing, or a recording. They are only read."""

from __future__ import annotations

import hashlib
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import JournalError, readable

Numbered = tuple[int, GroupRecorded | None]
"""A group with its number, which only rises and is never used again; None where it cannot be read."""


class GroupSource(Protocol):
    """Used by one thread, which is not the one that made it."""

    @property
    def name(self) -> str:
        """Which source it is, the same in every process."""
        ...

    def again(self) -> GroupSource:
        """The same source for another thread."""
        ...

    def identity(self) -> str:
        """What it holds: another one under the same name has another identity. Raises JournalError."""
        ...

    def version(self) -> int:
        """Changes whenever the source did. Raises JournalError."""
        ...

    def newer(self, after: int, limit: int) -> list[Numbered]:
        """The oldest `limit` groups with a number above `after`, in order. Raises JournalError."""
        ...

    def older(self, before: int, limit: int) -> list[Numbered]:
        """The newest `limit` groups with a number below `before`, in order. Raises JournalError."""
        ...

    def count(self, first: int, last: int) -> int:
        """Groups with numbers from first to last. Raises JournalError."""
        ...

    def numbers(self, first: int, last: int) -> list[int]:
        """The numbers themselves. Raises JournalError."""
        ...

    def read(self, numbers: Sequence[int]) -> list[Numbered]:
        """These groups in this order, without those that are gone. Raises JournalError."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class JournalGroups:
    """The groups of a journal.db."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._open: sqlite3.Connection | None = None

    @property
    def name(self) -> str:
        """The file."""
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
        """With a connection of its own."""
        return JournalGroups(self.path)

    def identity(self) -> str:
        """Of its first event, which is never taken back."""
        rows = self._rows("SELECT seq, body FROM events ORDER BY seq LIMIT 1")
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def version(self) -> int:
        """Of the file, as SQLite counts other connections' commits."""
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
    """The groups of a list of events, numbered by their place in it from 1."""

    def __init__(self, events: Sequence[object]) -> None:
        self._groups = {place: event for place, event in enumerate(events, 1) if isinstance(event, GroupRecorded)}
        self._numbers = list(self._groups)

    @property
    def name(self) -> str:
        """A recording has none: its index is kept in memory."""
        return ""

    def again(self) -> GroupSource:
        """Nothing of it changes."""
        return self

    def identity(self) -> str:
        """Of a list in memory there is only the one."""
        return "recording"

    def version(self) -> int:
        """It does not change."""
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
        found = [(number, self._groups[number]) for number in numbers if number in self._groups]
        return [(number, msgspec.structs.replace(event, seq=number)) for number, event in found]

    def close(self) -> None:
        """Nothing is open."""


def _read(rows: Sequence[tuple[int, bytes]]) -> list[Numbered]:
    found: list[Numbered] = []
    for number, body in rows:
        event = readable(body)
        found.append((number, msgspec.structs.replace(event, seq=number) if isinstance(event, GroupRecorded) else None))
    return found
