"""The single thread that writes to SQLite: it takes every waiting job into one transaction (group commit)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sapo_swarm.coordinator.records import InviteRecord, Member, PoolEntry, SwarmRecord
from sapo_swarm.coordinator.store.base import StoreFormat, StoreUnavailable
from sapo_swarm.protocol.wire import TaskUpload
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import on_disk

log = logging.getLogger("sapo.coordinator")
Statement = tuple[str, tuple[Any, ...]]

SCHEMA_VERSION = 1
DROP_MEMBER = "DELETE FROM members WHERE node=?"
BATCH = 256
"""Most jobs in a transaction: limits the wait of the first."""
SYNC_EVERY_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS swarm (one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS invites (hash TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (node TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (key INTEGER PRIMARY KEY, at REAL NOT NULL, id BLOB NOT NULL,
    content TEXT NOT NULL, node TEXT NOT NULL, blob BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (id TEXT PRIMARY KEY, at REAL NOT NULL, stored BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nonces (nonce TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS minutes (minute INTEGER, key TEXT, value REAL NOT NULL, PRIMARY KEY (minute, key))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uptake (node TEXT PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What the file held at the start."""

    swarm: SwarmRecord | None
    members: list[Member]
    invites: list[InviteRecord]
    tasks: list[TaskUpload]
    groups: list[tuple[int, float, PoolEntry]]
    rounds: list[tuple[str, tuple[float, tuple[bool, ...]]]]
    nonces: list[tuple[str, float]]
    minutes: list[tuple[int, str, float]]
    uptake: list[tuple[str, int]]


_Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})+\Z")]
_Time = Annotated[float, Meta(ge=-1e12, le=1e12)]
_Group = tuple[Annotated[int, Meta(ge=0)], _Time, bytes, str, str, bytes]
_Round = tuple[_Hex, _Time, bytes]
_Nonce = tuple[_Hex, _Time]
_Minute = tuple[int, str, Annotated[float, Meta(ge=-1e15, le=1e15)]]
_Uptake = tuple[str, Annotated[int, Meta(ge=0)]]


def open_database(path: Path) -> sqlite3.Connection:
    """The file, created with mode 0600 if missing. Raises StoreUnavailable, StoreFormat."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with contextlib.ExitStack() as failed:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
            failed.callback(connection.close)
            _prepare(connection, path)
            failed.pop_all()
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file gives messages that are not text
        raise StoreUnavailable(f"The store {path} does not open: {error}. Is another coordinator using it?") from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"The store {path} cannot have a write-ahead log here: is the disk full?")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA fullfsync=ON")  # as whole_file.on_disk
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise StoreFormat(f"{path} was written by another version (format {version}). Use that version, or a new file.")
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    # A second process on the same file would not see this one's pool: the lock is held until the end.
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("COMMIT")


def load_rows(connection: sqlite3.Connection) -> StoredRows:
    """Everything in the file, groups in order of age. Raises StoreFormat."""

    def records(table: str, kind: type[Any]) -> list[Any]:
        found = rows(f"SELECT record FROM {table}", tuple[bytes])
        return [msgspec.msgpack.decode(record, type=kind) for (record,) in found]

    def rows(query: str, kind: Any) -> list[Any]:
        return msgspec.convert(connection.execute(query).fetchall(), list[kind])

    try:
        swarm = records("swarm", SwarmRecord)
        return StoredRows(
            swarm=swarm[0] if swarm else None,
            members=records("members", Member),
            invites=records("invites", InviteRecord),
            tasks=records("tasks", TaskUpload),
            groups=[
                (key, at, PoolEntry(id, content, node, blob))
                for key, at, id, content, node, blob in rows("SELECT * FROM groups ORDER BY key", _Group)
            ],
            rounds=[
                (id, (at, tuple(map(bool, stored))))
                for id, at, stored in rows("SELECT id, at, stored FROM rounds ORDER BY at", _Round)
            ],
            nonces=rows("SELECT nonce, at FROM nonces ORDER BY at", _Nonce),
            minutes=rows("SELECT minute, key, value FROM minutes", _Minute),
            uptake=rows("SELECT node, times FROM uptake", _Uptake),
        )
    except (sqlite3.Error, *UNREADABLE) as error:
        raise StoreFormat(f"The store holds a row that does not read: {error}. Restore it from an export.") from error


@dataclass(slots=True)
class _Job:
    statements: list[Statement]
    durable: bool
    done: asyncio.Future[None] | None


class SqliteWriter:
    """Takes jobs and acknowledges them after their commit. A job's statements are in one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._wal = path.with_name(path.name + "-wal")
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._unsynced = False
        self._told = False

    def start(self) -> None:
        """Start taking jobs."""
        self._thread.start()

    async def stop(self) -> None:
        """Write what is pending, then close the file."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def write(self, statements: list[Statement], durable: bool = False) -> None:
        """Returns after the commit (durable: after an fsync). Raises StoreUnavailable; then nothing was kept."""
        if not self._thread.is_alive():
            raise StoreUnavailable("The store's writer has ended: start the coordinator again.")
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put(_Job(statements, durable, done))
        await done

    def write_behind(self, statements: list[Statement]) -> None:
        """Write soon; a failure is ignored. Also gives the thread its chance to fsync."""
        self._jobs.put(_Job(statements, False, None))

    def _run(self) -> None:
        last_sync = time.monotonic()
        while True:
            batch = [self._jobs.get()]
            while len(batch) < BATCH and not self._jobs.empty():
                batch.append(self._jobs.get())
            jobs = [job for job in batch if job is not None]
            error = self._commit(jobs)
            if self._unsynced and time.monotonic() - last_sync > SYNC_EVERY_S:
                self._sync()
                last_sync = time.monotonic()
            waiting = [job.done for job in jobs if job.done is not None]
            if waiting:
                self._loop.call_soon_threadsafe(_acknowledge, waiting, error)
            if None in batch:
                self._connection.close()
                return

    def _commit(self, jobs: list[_Job]) -> StoreUnavailable | None:
        statements = [statement for job in jobs for statement in job.statements]
        if not statements:
            return None
        durable = any(job.durable for job in jobs)
        try:
            # FULL: the fsync is part of the commit. A failed one undoes it, so the file never holds what was refused.
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN")
            for sql, parameters in by_kind(statements):
                self._connection.executemany(sql, parameters)
            self._connection.execute("COMMIT")
            self._unsynced = not durable
        except Exception as error:  # whatever it is: these jobs failed, and the thread goes on
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return StoreUnavailable(f"The store cannot be written: {error}.")
        return None

    def _sync(self) -> None:
        """fsync the write-ahead log, or leave it to the next time. (Closing this descriptor drops no SQLite lock: those are
        on the database.)"""
        try:
            handle = os.open(self._wal, os.O_RDWR)
            try:
                on_disk(handle)
            finally:
                os.close(handle)
            self._unsynced = self._told = False
        except OSError as error:
            if not self._told:
                log.warning("What the store wrote may not survive a power cut, it tries again every second: %s", error)
            self._told = True


def by_kind(statements: list[Statement]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Group statements of the same text, so that SQLite runs each kind in one call; deletions come last, but those of members
    first.

    The order within a kind stays. Keys of groups are never reused, so a group that came and went within one batch is
    inserted, then deleted. A member that was removed may join again within the batch.
    """
    kinds: dict[str, list[tuple[Any, ...]]] = {}
    for sql, parameters in statements:
        kinds.setdefault(sql, []).append(parameters)
    return sorted(kinds.items(), key=lambda kind: kind[0].startswith("DELETE") - 2 * kind[0].startswith(DROP_MEMBER))


def _acknowledge(waiting: list[asyncio.Future[None]], error: StoreUnavailable | None) -> None:
    for done in waiting:
        if done.cancelled():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
