"""The swarm, its invites and members in the embedded store: in memory, and every write fsynced before it is answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from sapo_swarm.coordinator.domain.records import (
    GIVE_WAY,
    INVITE_OK,
    LOOK_EVERY_S,
    SEEN_EVERY_S,
    SWARM_FULL,
    InviteRecord,
    Member,
    PoolLimits,
    SwarmRecord,
)
from sapo_swarm.coordinator.store.base import StoreUnavailable, invite_verdict
from sapo_swarm.coordinator.store.sqlite_writer import DROP_MEMBER, Statement, Writer
from sapo_swarm.protocol.task_offer import TaskOffer, TaskUpload


class SQLiteRegistry:
    """The part of SQLiteStore that changes rarely."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self._writer: Writer | None = None
        self._looked = -math.inf
        self._enter(None, (), (), ())

    def _enter(
        self,
        swarm: SwarmRecord | None,
        members: Iterable[Member],
        invites: Iterable[InviteRecord],
        tasks: Iterable[TaskUpload],
    ) -> None:
        """What the file holds."""
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
        known, gone = self._members.get(member.node), list[Member]()
        invite = self._invites.get(member.invite)
        verdict = invite_verdict(invite, now, self.limits.idle_s)
        if known is not None and not known.idle(now, self.limits.idle_s):
            if invite is not None and verdict == INVITE_OK and not known.invite:
                known_by = invite.hash
                statements.append(self._used(invite, now))
            else:
                known_by = known.invite
            member = msgspec.structs.replace(
                member,
                joined=known.joined,
                invite=known_by,
                banned=known.banned,
                key=known.key,
                waiting=known.waiting,
                seen=known.seen,
            )
        else:
            needs_invite = bool(member.invite) or self._swarm is None or not self._swarm.open
            if needs_invite and verdict != INVITE_OK:
                return verdict
            if known is None and len(self._members) >= self.limits.members and not (gone := self._giving_way(now)):
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
            self._never_admitted(member, known, used_up)
            self._members = {old.node: old for old in gone} | self._members
            raise
        self._forget_uptake(old.node for old in gone if old.node not in self._members)
        return INVITE_OK

    def _used(self, invite: InviteRecord, now: float) -> Statement:
        self._invites[invite.hash] = used = msgspec.structs.replace(invite, uses=invite.uses + 1, used=now)
        return _invite_row(used)

    def _giving_way(self, now: float) -> list[Member]:
        """Of a full swarm, members whose places are a newcomer's."""
        if abs(now - self._looked) < LOOK_EVERY_S:
            return []
        is_open = self._swarm is not None and self._swarm.open
        found = (member for member in self._members.values() if member.gives_way(now, self.limits.idle_s, is_open))
        gone = list(islice(found, GIVE_WAY))
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
        """Members from before it was kept when they were seen: their silence counts from now on."""
        old = [msgspec.structs.replace(member, seen=now) for member in self._members.values() if not member.seen]
        self._members.update({member.node: member for member in old})
        return [_member_row(member) for member in old]

    def _seen(self, node: str, now: float) -> list[Statement]:
        """The member exchanges now: what keeps that, the first time or where it is time to."""
        member = self._members.get(node)
        if member is None or (member.seen > member.joined and abs(now - member.seen) < SEEN_EVERY_S):
            return []
        self._members[node] = seen = msgspec.structs.replace(member, seen=now)
        return [_member_row(seen)]

    def _forget_groups(self, node: str) -> int:
        """Take a node's groups out of the pool, with the next write out of the file too: how many."""
        raise NotImplementedError

    def _forget_uptake(self, nodes: Iterable[str]) -> None:
        """In memory: how often groups of these were drawn."""
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
