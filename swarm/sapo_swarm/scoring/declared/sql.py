"""The verifier of SQL: both queries on a copy of the fixture in memory, read only, with bounds on time, rows and size."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sapo_swarm.scoring.declared.case import Case
from sapo_swarm.tasks.own.verifiers import Sql

MAX_ROWS = 1000
MAX_RESULT = 2**21
"""Bytes of a result's values in memory: a query of 100 letters makes a gigabyte of them."""
MAX_STEPS = 2_000_000
"""Instructions of SQLite's machine a query: some tens of milliseconds."""
_STEP = 10_000
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_BIG = 2**20
_WAL, _ROLLBACK = b"\2\2", b"\1\1"
"""Bytes 18 and 19 of a database: its journal is a write-ahead log, or a rollback journal (sqlite.org/fileformat2.html)."""
_DENIED = frozenset({"random", "randomblob", "zeroblob", "printf", "format", "load_extension", "fts3_tokenizer"})
"""Functions that make a verdict a matter of luck, or megabytes out of a few letters."""


def same_result(part: Sql, case: Case) -> float:
    """1.0 where the answer gives the truth's rows. The names of columns do not count; a truth without rows is never met."""
    wanted = _wanted(case.task.fixture, case.truth)
    if not wanted:
        return 0.0
    found = _ask(case.task.fixture, case.answer)
    if found is None:
        return 0.0
    return float(found == wanted if part.ordered else Counter(found) == Counter(wanted))


@lru_cache(maxsize=32)
def _wanted(fixture: bytes, truth: str) -> tuple[Sequence[Any], ...] | None:
    return _ask(fixture, truth)


def _ask(fixture: bytes, query: str) -> tuple[Sequence[Any], ...] | None:
    """The rows of one query, None where it fails or gives more than MAX_ROWS or MAX_RESULT."""
    connection = _database(fixture)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += _STEP
        return steps > MAX_STEPS

    connection.set_progress_handler(count, _STEP)
    try:
        rows, size = [], 0
        for row in connection.execute(query):
            rows.append(row)
            size += sum(map(sys.getsizeof, row))
            if len(rows) > MAX_ROWS or size > MAX_RESULT:
                return None
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        connection.set_progress_handler(None, 0)
    return tuple(rows)


class _Closing(sqlite3.Connection):
    """Closes itself when the cache lets go of it."""

    def __del__(self) -> None:
        self.close()


@lru_cache(maxsize=4)
def _database(fixture: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=_Closing)
    if fixture[18:20] == _WAL:  # without a file there is no write-ahead log to be opened
        fixture = fixture[:18] + _ROLLBACK + fixture[20:]
    connection.deserialize(fixture)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, _BIG),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 8192),
        (sqlite3.SQLITE_LIMIT_COLUMN, 64),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 64),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 8),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
    ):
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorise)
    return connection


def _authorise(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    """Reading and calculating only."""
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _DENIED):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
