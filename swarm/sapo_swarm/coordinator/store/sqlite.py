"""The embedded store: the pool in memory, SQLite in WAL behind it, one writer thread with group commit.

An exchange is answered after its transaction committed, so an acknowledged group survives a killed process; the log
is fsynced every second, so a power cut may lose that much. Invites, bans and identities are fsynced at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from sapo_swarm.coordinator.domain.apply import task_of
from sapo_swarm.coordinator.domain.counters import Counters
from sapo_swarm.coordinator.domain.pool import GroupPool
from sapo_swarm.coordinator.domain.recent import Recent
from sapo_swarm.coordinator.domain.records import (
    MINUTE,
    WINDOW_MINUTES,
    Entry,
    Exchange,
    Exchanged,
    NodeStats,
    PoolLimits,
    WindowStats,
)
from sapo_swarm.coordinator.store.base import StoreError, StoreUnavailable
from sapo_swarm.coordinator.store.sqlite_registry import SQLiteRegistry
from sapo_swarm.coordinator.store.sqlite_writer import Statement, Writer, connect, load_rows
from sapo_swarm.protocol.wire import PER_SOURCE

PROBE = "0" * 32
"""A nonce that nobody uses: what is written to see whether writing works."""
_COUNT = "INSERT INTO minutes VALUES (?,?,?) ON CONFLICT DO UPDATE SET value = value + excluded.value"


class SQLiteStore(SQLiteRegistry):
    """path: the database file, made with mode 0600. rng: for sampling."""

    def __init__(self, path: Path, limits: PoolLimits | None = None, rng: random.Random | None = None) -> None:
        super().__init__(limits or PoolLimits())
        self.path = path
        self._rng = rng or random.Random()
        self._forget()
        self._flusher: asyncio.Task[None] | None = None

    def _forget(self) -> None:
        """Nothing in memory: as before the file is read."""
        self._pool = GroupPool(self.limits)
        self._gone: list[int] = []  # keys that are no longer in the pool, until the file is known to have dropped them
        self._nonces: Recent[bool] = Recent(self.limits.nonces_kept_s)
        self._rounds: Recent[tuple[bool, ...]] = Recent(self.limits.rounds_kept_s)
        self._counters = Counters()
        self._uptake: dict[str, int] = {}
        self._receipts: dict[str, dict[str, int]] = {}
        self._pruned = 0

    async def open(self) -> None:
        """Raises StoreUnavailable, StoreFormat."""
        connection = await asyncio.to_thread(connect, self.path)
        try:
            rows = await asyncio.to_thread(load_rows, connection)
        except StoreError:
            connection.close()
            raise
        self._forget()
        self._enter(rows.swarm, rows.members, rows.invites, rows.tasks)
        now = time.time()  # rows ahead of it are of a clock that was set back: they came first
        for nonce, at in sorted(rows.nonces, key=lambda row: row[1] <= now):
            self._nonces.put(bytes.fromhex(nonce), True, at)
        for round_id, (at, stored) in sorted(rows.rounds, key=lambda row: row[1][0] <= now):
            self._rounds.put(bytes.fromhex(round_id), stored, at)
        for minute, key, value in rows.minutes:
            self._counters.add(minute, key, value, dirty=False)
        self._uptake.update(rows.uptake)
        for place, at, entry in rows.groups:
            invite = self._members[entry.node].invite if entry.node in self._members else ""
            entry = msgspec.structs.replace(entry, invite=invite, task=task_of(entry.blob))
            self._gone += self._pool.add(entry, at, place)[1]
        self._writer = Writer(connection, self.path, asyncio.get_running_loop())
        self._writer.start()
        await self._write(self._known_of_old(now))
        self._flusher = asyncio.create_task(self._flush_forever())

    async def close(self) -> None:
        """See Store."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        if self._writer is not None:
            self._flush()
            with contextlib.suppress(StoreUnavailable):
                await self._write([])
            await self._writer.stop()
            self._writer = None

    async def ping(self) -> None:
        """See Store. Writes a row: a full disk answers every reading question."""
        await self._write([("INSERT OR REPLACE INTO nonces VALUES (?,?)", (PROBE, time.time()))])

    # The hot path

    async def use_nonce(self, nonce: str, now: float) -> bool:
        """See Store."""
        if not self._take_nonce(nonce, now):
            return False
        await self._write([("INSERT OR IGNORE INTO nonces VALUES (?,?)", (nonce, now))])
        return True

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See Store."""
        member = self._members.get(exchange.node)
        if member is not None and member.banned:
            return Exchanged(banned=member.banned)
        if not self._take_nonce(exchange.nonce, exchange.now):
            return Exchanged(replayed=True)
        statements = self._expire(exchange.now)
        statements.append(("INSERT OR IGNORE INTO nonces VALUES (?,?)", (exchange.nonce, exchange.now)))
        statements += self._seen(exchange.node, exchange.now)
        known = self._rounds.get(bytes.fromhex(exchange.round_id))
        added: list[int] = []
        stored = self._store(exchange, statements, added) if known is None else known
        try:
            await self._write(statements)
        except StoreUnavailable:
            self._undo(exchange, known is None, added)
            raise
        if known is None:
            self._count(exchange.now, {**exchange.counts, "rounds": 1, f"g/{exchange.node}": float(sum(stored))})
        return self._answer(exchange, stored)

    async def snapshot(self, now: float, want: int) -> tuple[bytes, ...]:
        """See Store."""
        await self._write(self._expire(now))
        return tuple(entry.blob for entry in self._pool.sample(self._rng, want, "", frozenset()))

    async def leave(self, node: str) -> int:
        """See Store."""
        left = self._forget_groups(node)
        await self._write([])
        return left

    async def stats(self, now: float, limit: int) -> WindowStats:
        """See Store."""
        self._counters.prune(now)
        counters = self._counters
        top = heapq.nlargest(limit, counters.groups.items(), key=lambda item: item[1])
        rows = tuple(
            NodeStats(
                member=self._members[node],
                groups=groups,
                sampled=counters.sampled.get(node, 0),
                seen=counters.seen.get(node, 0.0),
            )
            for node, groups in top
            if node in self._members
        )
        return WindowStats(
            rows=rows,
            total=counters.total,
            nodes=counters.present(now),
            members=len(self._members),
            pool=len(self._pool),
            minutes=counters.recent(),
        )

    def _store(self, exchange: Exchange, statements: list[Statement], added: list[int]) -> tuple[bool, ...]:
        stored: list[bool] = []
        for entry in exchange.entries:
            fresh = entry is not None and entry.content not in self._pool
            stored.append(fresh)
            if entry is not None and fresh:
                key, gone = self._pool.add(entry, exchange.now)
                added.append(key)
                self._gone += gone
                row = (key, exchange.now, entry.id, entry.content, entry.node, entry.blob)
                statements.append(("INSERT OR REPLACE INTO groups VALUES (?,?,?,?,?,?)", row))
        result = tuple(stored)
        self._rounds.put(bytes.fromhex(exchange.round_id), result, exchange.now)
        statements.append(
            ("INSERT OR REPLACE INTO rounds VALUES (?,?,?)", (exchange.round_id, exchange.now, bytes(result)))
        )
        return result

    def _undo(self, exchange: Exchange, first: bool, added: list[int]) -> None:
        """Nothing was acknowledged: the same round may come again and must not meet its own traces."""
        self._nonces.drop(bytes.fromhex(exchange.nonce))
        if first:
            self._rounds.drop(bytes.fromhex(exchange.round_id))
        for key in added:
            self._pool.drop(key)

    def _answer(self, exchange: Exchange, stored: tuple[bool, ...]) -> Exchanged:
        sampled: list[Entry] = []
        if exchange.want:
            sampled = self._pool.sample(
                self._rng, exchange.want, exchange.node, exchange.have, exchange.accepts, PER_SOURCE
            )
        for entry in sampled:
            self._uptake[entry.node] = self._uptake.get(entry.node, 0) + 1
            who = self._receipts.setdefault(entry.node, {})
            who[exchange.node] = who.get(exchange.node, 0) + 1
        self._count(exchange.now, Counter(f"d/{entry.node}" for entry in sampled))
        self._counters.mark_seen(exchange.node, exchange.now)
        return Exchanged(
            stored=stored,
            sample=tuple(entry.blob for entry in sampled),
            uptake=self._uptake.get(exchange.node, 0),
            receipts=self._receipts.pop(exchange.node, {}),
            mine=self._counters.groups.get(exchange.node, 0),
            total=self._counters.total,
            nodes=self._counters.present(exchange.now),
            pool=len(self._pool),
        )

    def _take_nonce(self, nonce: str, now: float) -> bool:
        key = bytes.fromhex(nonce)
        if self._nonces.get(key):
            return False
        self._nonces.put(key, True, now)
        return True

    def _expire(self, now: float) -> list[Statement]:
        """Forget what is past its time."""
        self._gone += self._pool.expire(now)
        minute = int(now) // MINUTE
        statements: list[Statement] = []
        if minute != self._pruned:
            self._pruned, edge = minute, self._counters.prune(now)
            self._receipts = {
                node: who
                for node, who in self._receipts.items()
                if abs(now - self._counters.seen.get(node, 0.0)) < 3600
            }
            statements = [
                ("DELETE FROM minutes WHERE minute<=? OR minute>?", (edge, edge + WINDOW_MINUTES + 1)),
                ("DELETE FROM nonces WHERE at<?", (now - self.limits.nonces_kept_s,)),
                ("DELETE FROM rounds WHERE at<?", (now - self.limits.rounds_kept_s,)),
            ]
        return statements

    def _count(self, now: float, counts: Mapping[str, float]) -> None:
        minute = int(now) // MINUTE
        for key, value in counts.items():
            self._counters.add(minute, key, value)

    def _forget_groups(self, node: str) -> int:
        gone = self._pool.drop_node(node)
        self._gone += gone
        return len(gone)

    async def _write(self, statements: list[Statement], durable: bool = False) -> None:
        gone, self._gone = self._gone, []
        try:
            await super()._write([*(("DELETE FROM groups WHERE key=?", (key,)) for key in gone), *statements], durable)
        except BaseException:  # cancelled, say: whether it was written is not known, and it may be written twice
            self._gone += gone
            raise

    def _forget_uptake(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._uptake.pop(node, None)

    # Housekeeping

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._flush()

    def _flush(self) -> None:
        """Hand the counters to the writer: a killed process may lose a second of them, never a group."""
        if self._writer is None:
            return
        dirty = self._counters.dirty
        statements: list[Statement] = [(_COUNT, (minute, key, value)) for (minute, key), value in dirty.items()]
        statements += [
            ("INSERT OR REPLACE INTO uptake VALUES (?,?)", (key[2:], self._uptake.get(key[2:], 0)))
            for _, key in dirty
            if key.startswith("d/")
        ]
        dirty.clear()
        self._writer.write_behind(statements)
