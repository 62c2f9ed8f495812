"""Looks a journal over, and mends what can be mended without losing anything: the core of `runs check [--repair]`."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from sapo_swarm.events import CheckpointSaved, RoundFinished
from sapo_swarm.node.storage.journal import Journal, JournalError, readable


@dataclass(frozen=True, slots=True)
class JournalReport:
    """events: readable ones. unreadable: rows that are no event of this version. rounds: finished rounds that are told of.
    missing: rounds between the first and the last of which nothing is told. repeated: rounds told twice. damage: what SQLite
    says about the file, "" when it is whole. aside: where a repair put what it took out, None when it took out nothing."""

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
        """Nothing to mend."""
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
    """Read every row; nothing is changed. Raises JournalError when there is no such file or it is no database."""
    if not path.exists():
        raise JournalError(f"There is no journal at {path}.")
    damage, rows = "", 0
    unreadable = 0
    seen: dict[int, int] = {}
    back: set[int] = set()
    covered = 0
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            damage = "" if said == "ok" else str(said)
            for _, body in _rows(db):
                event = readable(body)
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
    steps_back = sum(number < last and number not in seen for number in back)  # they count as rounds, and train nothing
    missing = max(0, last + 1 - covered + repeated - steps_back)
    return JournalReport(rows, unreadable, covered, missing, repeated, path.stat().st_size, damage)


def repair_journal(path: Path) -> JournalReport:
    """Write what can be read into a new journal, which takes the old one's place; the old file stays beside it.

    Of a round that is told twice the newer one counts. A sound journal is left alone. A kill at any moment leaves a journal.
    Call while no node runs. Raises JournalError.
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
    found = check_journal(path)
    return JournalReport(
        found.events, before.unreadable, found.rounds, found.missing, before.repeated, found.bytes, before.damage, aside
    )


def _second_name(path: Path, name: Path) -> None:
    """The file under another name too; a copy where the file system has no hard links."""
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
            event = readable(body)
            if event is None or (isinstance(event, RoundFinished) and newest[event.round] != seq):
                continue
            kind, number = str(type(event).__struct_config__.tag), getattr(event, "round", None)
            target.execute("INSERT INTO events (seq, kind, round, body) VALUES (?, ?, ?, ?)", (seq, kind, number, body))


def _newest_tellings(db: sqlite3.Connection) -> dict[int, int]:
    found: dict[int, int] = {}
    for seq, body in _rows(db):
        event = readable(body)
        if isinstance(event, RoundFinished):
            found[event.round] = seq
    return found


def _rows(db: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Rows in order, as many as a damaged file gives."""
    try:
        for seq, body in db.execute("SELECT seq, body FROM events ORDER BY seq"):
            yield int(seq), body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
    except sqlite3.DatabaseError:
        return


def _free_name(path: Path) -> Path:
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
