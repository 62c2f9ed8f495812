"""The swarm, its invites and members in the embedded store: in memory, and every write fsynced before it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sapo_swarm.coordinator.domain.records import INVITE_OK, SWARM_FULL, InviteRecord, Member, PoolLimits, SwarmRecord
from sapo_swarm.coordinator.store.base import StoreUnavailable, invite_verdict
from sapo_swarm.coordinator.store.sqlite_writer import Statement, Writer


class SQLiteRegistry:
    """The part of SQLiteStore that changes rarely."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self._writer: Writer | None = None
        self._enter(None, (), ())

    def _enter(self, swarm: SwarmRecord | None, members: Iterable[Member], invites: Iterable[InviteRecord]) -> None:
        """What the file holds."""
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
            statements += [_member_row(banned), *self._forget_groups(member.node)]
        await self._write(statements, durable=True)
        return [member.node for member in admitted]

    async def admit(self, member: Member, now: float) -> str:
        """See Store."""
        statements: list[Statement] = []
        known = self._members.get(member.node)
        if known is not None:
            member = msgspec.structs.replace(
                member,
                joined=known.joined,
                invite=known.invite,
                banned=known.banned,
                key=known.key,
                waiting=known.waiting,
            )
        elif len(self._members) >= self.limits.members:
            return SWARM_FULL
        elif member.invite or self._swarm is None or not self._swarm.open:
            invite = self._invites.get(member.invite)
            verdict = invite_verdict(invite, now)
            if invite is None or verdict != INVITE_OK:
                return verdict
            used = msgspec.structs.replace(invite, uses=invite.uses + 1)
            self._invites[invite.hash] = used
            statements.append(_invite_row(used))
        self._members[member.node] = member
        await self._write([*statements, _member_row(member)], durable=True)
        return INVITE_OK

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
        await self._write([_member_row(banned), *self._forget_groups(node)], durable=True)
        return True

    async def approve(self, node: str) -> bool:
        """See Store."""
        member = self._members.get(node)
        if member is None:
            return False
        self._members[node] = approved = msgspec.structs.replace(member, waiting=False)
        await self._write([_member_row(approved)], durable=True)
        return True

    async def restore(self, members: Sequence[Member], invites: Sequence[InviteRecord]) -> None:
        """See Store."""
        await self._write([*map(_member_row, members), *map(_invite_row, invites)], durable=True)
        self._members.update({member.node: member for member in members})
        self._invites.update({invite.hash: invite for invite in invites})

    def _forget_groups(self, node: str) -> list[Statement]:
        """Take a node's groups out of the pool in memory: what takes them out of the file."""
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
