"""Who comes into a swarm in the Redis store, and who gives way where it is full."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sapo_swarm.coordinator.domain.records import GIVE_WAY, INVITE_OK, LOOK_EVERY_S, SWARM_FULL, Member
from sapo_swarm.coordinator.store import redis_scripts as scripts
from sapo_swarm.coordinator.store.redis_link import pack, reaching, wait
from sapo_swarm.coordinator.store.redis_registry import RedisRegistry, member_of, seen_member


class RedisMembers(RedisRegistry):
    """The part of RedisStore that admits."""

    _looked = -math.inf

    async def admit(self, member: Member, now: float) -> str:
        """See Store."""
        async with reaching():
            swarm = await self.swarm()
            is_open = swarm is not None and swarm.open
            before = await self.member(member.node)
            idle = before is not None and before.idle(now, self.limits.idle_s)
            arguments = [now, member.node, member.invite, int(is_open), pack(member), self.limits.members, int(idle)]
            uninvited = before is not None and not before.invite
            arguments += [self.limits.idle_s, int(uninvited and bool(member.invite))]
            verdict = await self._run(scripts.ADMIT, "members", *arguments)
            if verdict == SWARM_FULL.encode() and await self._make_room(now, is_open):
                verdict = await self._run(scripts.ADMIT, "members", *arguments)
            if verdict in (b"known", b"invited"):
                known = await self.member(member.node)
                if known is None:  # it gave way just now
                    return await self.admit(member, now)
                mine = member.invite if verdict == b"invited" else known.invite
                updated = msgspec.structs.replace(known, name=member.name, model=member.model, banned="", invite=mine)
                await wait(self._server.hset(self._key("members"), member.node, pack(updated)))
                verdict = INVITE_OK.encode()
            await self._replicated()
        return str(verdict.decode())

    async def _make_room(self, now: float, is_open: bool) -> bool:
        """In a full swarm: whether members gave way. It reads the members in pieces."""
        if abs(now - self._looked) < LOOK_EVERY_S:
            return False
        self._looked = now
        cursor, dropped = 0, 0
        while dropped < GIVE_WAY:
            cursor, rows = await wait(self._server.hscan(self._key("members"), cursor, count=GIVE_WAY))
            dropped += await self._drop(rows, now, is_open) if rows else 0
            if not cursor:
                return dropped > 0
        self._looked = -math.inf
        return True

    async def _drop(self, rows: dict[bytes, bytes], now: float, is_open: bool) -> int:
        """How many of these members gave way."""
        nodes: list[Any] = list(rows)
        async with self._server.pipeline(transaction=False) as pipe:
            pipe.hmget(self._key("banned"), nodes)
            pipe.zmscore(self._key("seen"), nodes)
            banned, seen = await pipe.execute()
        arguments: list[Any] = []
        for raw, ban, at in zip(rows.values(), banned, seen, strict=True):
            member = seen_member(member_of(raw, ban), at)
            if member.gives_way(now, self.limits.idle_s, is_open):
                arguments += [member.node, raw, member.seen, member.invite]
        return int(await self._run(scripts.DROP_MEMBERS, "members", *arguments)) if arguments else 0
