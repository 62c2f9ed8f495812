"""The embedded store: pool, swarm, invites and members in memory, SQLite in WAL behind them, one writer thread."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from sapo_swarm.coordinator.group_pool import GroupPool
from sapo_swarm.coordinator.records import (
    GIVE_WAY,
    INVITE_OK,
    LOOK_EVERY_S,
    MINUTE,
    SEEN_EVERY_S,
    SWARM_FULL,
    WINDOW_MINUTES,
    ExchangeOutcome,
    InviteRecord,
    Member,
    NodeStats,
    PoolEntry,
    PoolLimits,
    RoundExchange,
    SwarmRecord,
    WindowStats,
)
from sapo_swarm.coordinator.rules import RecentKeys, task_of
from sapo_swarm.coordinator.store.base import StoreError, StoreUnavailable, invite_verdict
from sapo_swarm.coordinator.store.sqlite_writer import DROP_MEMBER, SqliteWriter, Statement, load_rows, open_database
from sapo_swarm.coordinator.window_stats import WindowCounters
from sapo_swarm.protocol.wire import PER_SOURCE, TaskOffer, TaskUpload

# The swarm, its invites and members in the embedded store: in memory, and every write fsynced before it is answered.


class SQLiteRegistry:
    """The part of SQLiteStore that changes rarely."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self._writer: SqliteWriter | None = None
        self._looked = -math.inf
        self._enter(None, (), (), ())

    def _enter(
        self,
        swarm: SwarmRecord | None,
        members: Iterable[Member],
        invites: Iterable[InviteRecord],
        tasks: Iterable[TaskUpload],
    ) -> None:
        """Load the file's content."""
        self._tasks = {task.offer.name: task for task in tasks}
        self._swarm = swarm
        self._members = {member.node: member for member in members}
        self._invites = {invite.hash: invite for invite in invites}

    async def swarm(self) -> SwarmRecord | None:
        """See Store."""
        return self._swarm

    async def found(self, record: SwarmRecord) -> SwarmRecord:
        """See Store."""
        if self._swarm is None:
            await self.rename(record)
        assert self._swarm is not None
        return self._swarm

    async def rename(self, record: SwarmRecord) -> None:
        """See Store."""
        await self._write([("INSERT OR REPLACE INTO swarm VALUES (1,?)", (_pack(record),))], durable=True)
        self._swarm = record

    async def add_invite(self, invite: InviteRecord) -> None:
        """See Store."""
        await self._write([_invite_row(invite)], durable=True)
        self._invites[invite.hash] = invite

    async def invites(self) -> list[InviteRecord]:
        """See Store."""
        return sorted(self._invites.values(), key=lambda invite: invite.created)

    async def revoke_invite(self, hash: str) -> list[str]:
        """See Store."""
        invite = self._invites.get(hash)
        if invite is None:
            return []
        self._invites[hash] = revoked = msgspec.structs.replace(invite, revoked=True)
        admitted = [member for member in self._members.values() if member.invite == hash]
        statements = [_invite_row(revoked)]
        for member in admitted:
            banned = msgspec.structs.replace(member, banned=member.banned or "invite revoked")
            self._members[member.node] = banned
            statements.append(_member_row(banned))
            self._forget_groups(member.node)
        await self._write(statements, durable=True)
        return [member.node for member in admitted]

    async def admit(self, member: Member, now: float) -> str:
        """See Store."""
        statements: list[Statement] = []
        before, gone = self._members.get(member.node), list[Member]()
        invite = self._invites.get(member.invite)
        verdict = invite_verdict(invite, now, self.limits.idle_s)
        if before is not None and not before.idle(now, self.limits.idle_s):
            if invite is not None and verdict == INVITE_OK and not before.invite:
                known_by = invite.hash
                statements.append(self._used(invite, now))
            else:
                known_by = before.invite
            member = msgspec.structs.replace(
                member,
                joined=before.joined,
                invite=known_by,
                banned=before.banned,
                key=before.key,
                waiting=before.waiting,
                seen=before.seen,
            )
        else:
            needs_invite = bool(member.invite) or self._swarm is None or not self._swarm.open
            if needs_invite and verdict != INVITE_OK:
                return verdict
            if before is None and len(self._members) >= self.limits.members and not (gone := self._giving_way(now)):
                return SWARM_FULL
            if needs_invite and invite is not None:
                statements.append(self._used(invite, now))
            member = msgspec.structs.replace(member, seen=member.joined)
        used_up = bool(statements)
        for old in gone:
            del self._members[old.node]
            statements += [(DROP_MEMBER, (old.node,)), ("DELETE FROM uptake WHERE node=?", (old.node,))]
        self._members[member.node] = member
        try:
            await self._write([*statements, _member_row(member)], durable=True)
        except StoreUnavailable:
            self._never_admitted(member, before, used_up)
            self._members = {old.node: old for old in gone} | self._members
            raise
        self._forget_uptake(old.node for old in gone if old.node not in self._members)
        return INVITE_OK

    def _used(self, invite: InviteRecord, now: float) -> Statement:
        self._invites[invite.hash] = used = msgspec.structs.replace(invite, uses=invite.uses + 1, used=now)
        return _invite_row(used)

    def _giving_way(self, now: float) -> list[Member]:
        """In a full swarm, members whose places a newcomer may take."""
        if abs(now - self._looked) < LOOK_EVERY_S:
            return []
        is_open = self._swarm is not None and self._swarm.open
        candidates = (member for member in self._members.values() if member.gives_way(now, self.limits.idle_s, is_open))
        gone = list(islice(candidates, GIVE_WAY))
        if len(gone) < GIVE_WAY:
            self._looked = now
        return gone

    def _never_admitted(self, member: Member, before: Member | None, used: bool) -> None:
        """The file does not hold it: memory must not know it either, and its invite was not used."""
        if before is None:
            self._members.pop(member.node, None)
        else:
            self._members[member.node] = before
        invite = self._invites.get(member.invite)
        if used and invite is not None:
            self._invites[invite.hash] = msgspec.structs.replace(invite, uses=invite.uses - 1)

    async def member(self, node: str) -> Member | None:
        """See Store."""
        return self._members.get(node)

    async def members(self) -> list[Member]:
        """See Store."""
        return list(self._members.values())

    async def ban(self, node: str, reason: str) -> bool:
        """See Store."""
        member = self._members.get(node)
        if member is None:
            return False
        self._members[node] = banned = msgspec.structs.replace(member, banned=reason)
        self._forget_groups(node)
        await self._write([_member_row(banned)], durable=True)
        return True

    async def approve(self, node: str) -> bool:
        """See Store."""
        member = self._members.get(node)
        if member is None:
            return False
        await self._write([_member_row(msgspec.structs.replace(member, waiting=False))], durable=True)
        self._members[node] = msgspec.structs.replace(self._members.get(node, member), waiting=False)
        return True

    async def restore(self, members: Sequence[Member], invites: Sequence[InviteRecord]) -> None:
        """See Store."""
        await self._write([*map(_member_row, members), *map(_invite_row, invites)], durable=True)
        self._members.update({member.node: member for member in members})
        self._invites.update({invite.hash: invite for invite in invites})

    async def put_task(self, task: TaskUpload) -> None:
        """See Store."""
        row = ("INSERT OR REPLACE INTO tasks VALUES (?,?)", (task.offer.name, _pack(task)))
        await self._write([row], durable=True)
        self._tasks[task.offer.name] = task

    async def drop_task(self, name: str) -> bool:
        """See Store."""
        await self._write([("DELETE FROM tasks WHERE name=?", (name,))], durable=True)
        return self._tasks.pop(name, None) is not None

    async def tasks(self) -> list[TaskOffer]:
        """See Store."""
        return [self._tasks[name].offer for name in sorted(self._tasks)]

    async def task(self, hash: str) -> TaskUpload | None:
        """See Store."""
        return next((task for task in self._tasks.values() if task.offer.hash == hash), None)

    def _known_of_old(self, now: float) -> list[Statement]:
        """Members stored before last exchanges were recorded: their silence counts from now on."""
        old = [msgspec.structs.replace(member, seen=now) for member in self._members.values() if not member.seen]
        self._members.update({member.node: member for member in old})
        return [_member_row(member) for member in old]

    def _seen(self, node: str, now: float) -> list[Statement]:
        """The member exchanges now: the statements that store that, the first time or when it is due again."""
        member = self._members.get(node)
        if member is None or (member.seen > member.joined and abs(now - member.seen) < SEEN_EVERY_S):
            return []
        self._members[node] = seen = msgspec.structs.replace(member, seen=now)
        return [_member_row(seen)]

    def _forget_groups(self, node: str) -> int:
        """Take a node's groups out of the pool, and with the next write out of the file too; returns how many."""
        raise NotImplementedError

    def _forget_uptake(self, nodes: Iterable[str]) -> None:
        """Forget, in memory, how often groups of these nodes were drawn."""
        raise NotImplementedError

    async def _write(self, statements: list[Statement], durable: bool = False) -> None:
        if self._writer is None:
            raise StoreUnavailable("The store is closed.")
        await self._writer.write(statements, durable)


def _pack(record: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(record)


def _invite_row(invite: InviteRecord) -> Statement:
    return "INSERT OR REPLACE INTO invites VALUES (?,?)", (invite.hash, _pack(invite))


def _member_row(member: Member) -> Statement:
    return "INSERT OR REPLACE INTO members VALUES (?,?)", (member.node, _pack(member))


# The embedded store: the pool in memory, SQLite in WAL mode behind it, one writer thread with group commit.
#
# An exchange is answered after its transaction committed, so an acknowledged group survives a killed process; the log
# is fsynced every second, so a power cut may lose that much. Invites, bans and identities are fsynced at once.

PROBE = "0" * 32
"""A nonce that nobody uses: written to test whether writing works."""
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
        """Clear the memory: as before the file is read."""
        self._pool = GroupPool(self.limits)
        self._gone: list[int] = []  # keys gone from the pool, until the file is known to have dropped them
        self._nonces: RecentKeys[bool] = RecentKeys(self.limits.nonces_kept_s)
        self._rounds: RecentKeys[tuple[bool, ...]] = RecentKeys(self.limits.rounds_kept_s)
        self._counters = WindowCounters()
        self._uptake: dict[str, int] = {}
        self._receipts: dict[str, dict[str, int]] = {}
        self._pruned = 0

    async def open(self) -> None:
        """Raises StoreUnavailable, StoreFormat."""
        connection = await asyncio.to_thread(open_database, self.path)
        try:
            rows = await asyncio.to_thread(load_rows, connection)
        except StoreError:
            connection.close()
            raise
        self._forget()
        self._enter(rows.swarm, rows.members, rows.invites, rows.tasks)
        now = time.time()  # rows ahead of it are from a clock that was set back: they came first
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
        self._writer = SqliteWriter(connection, self.path, asyncio.get_running_loop())
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
        """See Store. Writes a row: a full disk still answers every read."""
        await self._write([("INSERT OR REPLACE INTO nonces VALUES (?,?)", (PROBE, time.time()))])

    # The hot path

    async def use_nonce(self, nonce: str, now: float) -> bool:
        """See Store."""
        if not self._take_nonce(nonce, now):
            return False
        await self._write([("INSERT OR IGNORE INTO nonces VALUES (?,?)", (nonce, now))])
        return True

    async def exchange(self, exchange: RoundExchange) -> ExchangeOutcome:
        """See Store."""
        member = self._members.get(exchange.node)
        if member is not None and member.banned:
            return ExchangeOutcome(banned=member.banned)
        if not self._take_nonce(exchange.nonce, exchange.now):
            return ExchangeOutcome(replayed=True)
        statements = self._expire(exchange.now)
        statements.append(("INSERT OR IGNORE INTO nonces VALUES (?,?)", (exchange.nonce, exchange.now)))
        statements += self._seen(exchange.node, exchange.now)
        earlier = self._rounds.get(bytes.fromhex(exchange.round_id))
        added: list[int] = []
        stored = self._store(exchange, statements, added) if earlier is None else earlier
        try:
            await self._write(statements)
        except StoreUnavailable:
            self._undo(exchange, earlier is None, added)
            raise
        if earlier is None:
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

    def _store(self, exchange: RoundExchange, statements: list[Statement], added: list[int]) -> tuple[bool, ...]:
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

    def _undo(self, exchange: RoundExchange, first: bool, added: list[int]) -> None:
        """Nothing was acknowledged: the same round may come again and must not meet its own traces."""
        self._nonces.drop(bytes.fromhex(exchange.nonce))
        if first:
            self._rounds.drop(bytes.fromhex(exchange.round_id))
        for key in added:
            self._pool.drop(key)

    def _answer(self, exchange: RoundExchange, stored: tuple[bool, ...]) -> ExchangeOutcome:
        sampled: list[PoolEntry] = []
        if exchange.want:
            sampled = self._pool.sample(
                self._rng, exchange.want, exchange.node, exchange.have, exchange.accepts, PER_SOURCE
            )
        for entry in sampled:
            self._uptake[entry.node] = self._uptake.get(entry.node, 0) + 1
            draws = self._receipts.setdefault(entry.node, {})
            draws[exchange.node] = draws.get(exchange.node, 0) + 1
        self._count(exchange.now, Counter(f"d/{entry.node}" for entry in sampled))
        self._counters.mark_seen(exchange.node, exchange.now)
        return ExchangeOutcome(
            stored=stored,
            sample=tuple(entry.blob for entry in sampled),
            origins=tuple(entry.invite for entry in sampled),
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
        """Forget what has expired."""
        self._gone += self._pool.expire(now)
        minute = int(now) // MINUTE
        statements: list[Statement] = []
        if minute != self._pruned:
            self._pruned, edge = minute, self._counters.prune(now)
            self._receipts = {
                node: draws
                for node, draws in self._receipts.items()
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
        except BaseException:  # such as cancelled: it may or may not be written, and may be written twice
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
