"""What the Redis store keeps long-term: the swarm, its invites, members and their tasks; and its connection."""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from sapo_swarm.coordinator.records import (
    GIVE_WAY,
    INVITE_OK,
    LOOK_EVERY_S,
    SWARM_FULL,
    InviteRecord,
    Member,
    PoolLimits,
    SwarmRecord,
)
from sapo_swarm.coordinator.store import redis_scripts as scripts
from sapo_swarm.coordinator.store.base import StoreFormat, StoreUnavailable
from sapo_swarm.protocol.wire import TaskOffer, TaskUpload
from sapo_swarm.types import UNREADABLE

# What every call of the Redis store needs: one error for whatever fails on the way, and records as msgpack.


@contextlib.asynccontextmanager
async def translate_redis_errors() -> AsyncIterator[None]:
    """Whatever fails on the way becomes StoreUnavailable, what does not read StoreFormat."""
    try:
        yield
    except (TimeoutError, RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {type(error).__name__}: {error}") from error
    except (ValueError, LookupError) as error:
        raise StoreFormat(f"Redis holds something that this program did not write: {error!r:.200}") from error


async def await_reply(reply: Any) -> Any:
    """redis-py types its asynchronous commands as `Awaitable | value`."""
    return await reply


def pack_record(record: msgspec.Struct) -> bytes:
    """The record as msgpack."""
    return msgspec.msgpack.encode(record)


def unpack_record(raw: bytes | str, kind: Any) -> Any:
    """The record in msgpack bytes. Raises StoreFormat."""
    try:
        return msgspec.msgpack.decode(raw.encode() if isinstance(raw, str) else raw, type=kind)
    except UNREADABLE as error:
        raise StoreFormat(f"The store holds a {kind.__name__} that does not read: {error}.") from error


# The Redis store's connection, and what it keeps long-term: the swarm, its invites and members.

log = logging.getLogger("sapo.coordinator")
TIMEOUT_S = 2.0
CONNECTIONS = 64
SENTINEL_PORT = 26_379
REPLICA_MS = 1000


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary that Sentinel names; callers wait if all of them are in use."""


class RedisRegistry:
    """url: redis://host:port/db (rediss:// for TLS), or sentinel://host:port,host:port/NAME/db: whatever server Sentinel names as
    the primary of NAME. namespace and shard make the hash tag."""

    def __init__(
        self,
        url: str,
        limits: PoolLimits | None = None,
        rng: random.Random | None = None,
        namespace: str = "sapo",
        shard: int = 0,
    ) -> None:
        self.limits = limits or PoolLimits()
        self.prefix = f"{{{namespace}.{shard}}}:"
        self._rng = rng or random.Random()
        self._url = url
        self._redis: Redis | None = None
        self._sentinel: Sentinel | None = None
        self.fails_over = url.startswith("sentinel:")
        self._pruned = 0
        self._scripts: dict[str, AsyncScript] = {}

    async def open(self) -> None:
        """Raises StoreUnavailable, StoreFormat (server too old)."""
        redis = self._redis = self._connected()
        try:
            async with translate_redis_errors():
                info: dict[str, Any] = await redis.info()
            if int(str(info.get("redis_version", "0")).split(".")[0]) < 7:
                raise StoreFormat(f"The server speaks Redis {info.get('redis_version')}; 7.0 or Valkey is needed.")
        except BaseException:
            await self.close()
            raise
        if not info.get("aof_enabled"):
            log.warning("This server keeps no append-only file: a crash of it loses members and invites.")

    def _connected(self) -> Redis:
        waits: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        bounds: dict[str, Any] = {**waits, "max_connections": CONNECTIONS, "timeout": TIMEOUT_S}
        if not self.fails_over:
            return Redis(connection_pool=BlockingConnectionPool.from_url(self._url, **bounds))
        parts = urlsplit(self._url)
        hosts = [
            (host, int(port or SENTINEL_PORT)) for host, _, port in (h.partition(":") for h in parts.netloc.split(","))
        ]
        name, _, db = parts.path.strip("/").partition("/")
        self._sentinel = Sentinel(hosts, sentinel_kwargs=waits)  # type: ignore[no-untyped-call]
        server = self._sentinel.master_for(name, connection_pool_class=_PrimaryPool, db=int(db or 0), **bounds)
        return cast(Redis, server)

    async def close(self) -> None:
        """See Store."""
        if self._redis is not None:
            await self._redis.aclose(close_connection_pool=True)
            self._redis = None
            self._scripts.clear()
        for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
            await sentinel.aclose()

    async def ping(self) -> None:
        """See Store."""
        async with translate_redis_errors():
            await self._server.set(self._key("probe"), b"1", ex=60)

    # The swarm, its invites and members

    async def swarm(self) -> SwarmRecord | None:
        """See Store."""
        async with translate_redis_errors():
            raw = await self._server.get(self._key("swarm"))
        return None if raw is None else unpack_record(raw, SwarmRecord)

    async def found(self, record: SwarmRecord) -> SwarmRecord:
        """See Store."""
        async with translate_redis_errors():
            await self._server.set(self._key("swarm"), pack_record(record), nx=True)
            await self._replicated()
        stored = await self.swarm()
        assert stored is not None
        return stored

    async def rename(self, record: SwarmRecord) -> None:
        """See Store."""
        async with translate_redis_errors():
            await self._server.set(self._key("swarm"), pack_record(record))
            await self._replicated()

    async def add_invite(self, invite: InviteRecord) -> None:
        """See Store."""
        async with translate_redis_errors(), self._server.pipeline(transaction=True) as pipe:
            self._put_invite(pipe, invite)
            await pipe.execute()
            await self._replicated()

    async def invites(self) -> list[InviteRecord]:
        """See Store."""
        async with translate_redis_errors():
            hashes = sorted(hash.decode() for hash in await await_reply(self._server.smembers(self._key("invites"))))
            async with self._server.pipeline(transaction=False) as pipe:
                for hash in hashes:
                    pipe.hgetall(self._key("invite:", hash))
                rows = await pipe.execute()
            invites = [_invite(hash, row) for hash, row in zip(hashes, rows, strict=True)]
        return sorted(invites, key=lambda invite: invite.created)

    async def revoke_invite(self, hash: str) -> list[str]:
        """See Store."""
        async with translate_redis_errors():
            if not await self._server.exists(self._key("invite:", hash)):
                return []
            await await_reply(self._server.hset(self._key("invite:", hash), "revoked", "1"))
            nodes = sorted(node.decode() for node in await await_reply(self._server.smembers(self._key("by:", hash))))
            rows = await await_reply(self._server.hmget(self._key("members"), nodes)) if nodes else []
            bans = await await_reply(self._server.hmget(self._key("banned"), nodes)) if nodes else []
        # a node that was silent for long and came back by another invite is in the sets of both
        members = (member_of(raw, banned) for raw, banned in zip(rows, bans, strict=True) if raw)
        admitted = [member for member in members if member.invite == hash]
        for member in admitted:
            await self.ban(member.node, member.banned or "invite revoked")
        return [member.node for member in admitted]

    async def member(self, node: str) -> Member | None:
        """See Store."""
        async with translate_redis_errors(), self._server.pipeline(transaction=False) as pipe:
            pipe.hget(self._key("members"), node)
            pipe.hget(self._key("banned"), node)
            pipe.zscore(self._key("seen"), node)
            raw, banned, seen = await pipe.execute()
        return None if raw is None else seen_member(member_of(raw, banned), seen)

    async def members(self) -> list[Member]:
        """See Store."""
        async with translate_redis_errors():
            rows = await await_reply(self._server.hgetall(self._key("members")))
            banned = await await_reply(self._server.hgetall(self._key("banned")))
            rows_seen: Any = await self._server.zrange(self._key("seen"), 0, -1, withscores=True)
        seen: dict[bytes, float] = dict(rows_seen)
        return [seen_member(member_of(raw, banned.get(node)), seen.get(node)) for node, raw in rows.items()]

    async def ban(self, node: str, reason: str) -> bool:
        """See Store."""
        async with translate_redis_errors():
            if not await await_reply(self._server.hexists(self._key("members"), node)):
                return False
            if reason:
                await await_reply(self._server.hset(self._key("banned"), node, reason))
            else:
                await await_reply(self._server.hdel(self._key("banned"), node))
            await self._run(scripts.DROP_NODE, f"own:{node}", node)
            await self._replicated()
        return True

    async def approve(self, node: str) -> bool:
        """See Store."""
        async with translate_redis_errors():
            raw = await await_reply(self._server.hget(self._key("members"), node))
            if raw is None:
                return False
            approved = msgspec.structs.replace(unpack_record(raw, Member), waiting=False)
            await await_reply(self._server.hset(self._key("members"), node, pack_record(approved)))
            await self._replicated()
        return True

    async def restore(self, members: Sequence[Member], invites: Sequence[InviteRecord]) -> None:
        """See Store."""
        async with translate_redis_errors(), self._server.pipeline(transaction=True) as pipe:
            for invite in invites:
                self._put_invite(pipe, invite)
            for member in members:
                pipe.hset(self._key("members"), member.node, pack_record(member))
                if member.seen:
                    pipe.zadd(self._key("seen"), {member.node: member.seen})
                if member.banned:
                    pipe.hset(self._key("banned"), member.node, member.banned)
                if member.invite:
                    pipe.sadd(self._key("by:", member.invite), member.node)
            await pipe.execute()
            await self._replicated()

    async def _replicated(self) -> None:
        """If there is a replica, wait until one has everything written so far, for at most REPLICA_MS.

        A primary that can be replaced (Sentinel) must have one: raises StoreUnavailable without. WAIT covers only the writes
        of its own connection, so a last write precedes it: replication keeps the order.
        """
        info: dict[str, Any] = {} if self.fails_over else await self._server.info("replication")
        if not (self.fails_over or info.get("connected_slaves")):
            return
        async with self._server.pipeline(transaction=False) as pipe:
            pipe.set(self._key("probe"), b"1", ex=60)
            pipe.wait(1, REPLICA_MS)
            _, replicas = await pipe.execute()
        if self.fails_over and not replicas:
            raise StoreUnavailable("No replica has the write: if the primary died now it would be lost.")

    def _put_invite(self, pipe: Any, invite: InviteRecord) -> None:
        fields = msgspec.structs.asdict(invite)
        hash = fields.pop("hash")
        pipe.hset(self._key("invite:", hash), mapping={**fields, "revoked": int(invite.revoked)})
        pipe.sadd(self._key("invites"), hash)

    def _key(self, *parts: object) -> str:
        return self.prefix + "".join(map(str, parts))

    async def _run(self, script: str, key: str, *arguments: Any) -> Any:
        """Run one of redis_scripts; `key` tells a cluster which node."""
        server = self._server
        if script not in self._scripts:
            self._scripts[script] = server.register_script(script)
        return await self._scripts[script](keys=[self._key(key)], args=[self.prefix, *arguments])

    @property
    def _server(self) -> Redis:
        if self._redis is None:
            raise StoreUnavailable("The store is closed.")
        return self._redis


def member_of(raw: bytes, banned: bytes | None) -> Member:
    """A member's record with its ban, which is stored beside it."""
    member: Member = unpack_record(raw, Member)
    return msgspec.structs.replace(member, banned=(banned or b"").decode())


def seen_member(member: Member, at: float | None) -> Member:
    """The member with the time of its last exchange, which is stored beside it too."""
    return member if at is None else msgspec.structs.replace(member, seen=at)


def _invite(hash: str, row: dict[bytes, bytes]) -> InviteRecord:
    text = {key.decode(): value.decode() for key, value in row.items()}
    return InviteRecord(
        hash=hash,
        label=text["label"],
        created=float(text["created"]),
        expires=float(text["expires"]),
        max_uses=int(text["max_uses"]),
        uses=int(text["uses"]),
        revoked=text["revoked"] == "1",
        used=float(text.get("used", "0")),
    )


# Who is admitted to a swarm in the Redis store, and who is removed if it is full.


class RedisMembers(RedisRegistry):
    """The part of RedisStore that admits."""

    _looked = -math.inf

    async def admit(self, member: Member, now: float) -> str:
        """See Store."""
        async with translate_redis_errors():
            swarm = await self.swarm()
            is_open = swarm is not None and swarm.open
            before = await self.member(member.node)
            idle = before is not None and before.idle(now, self.limits.idle_s)
            arguments = [
                now,
                member.node,
                member.invite,
                int(is_open),
                pack_record(member),
                self.limits.members,
                int(idle),
            ]
            uninvited = before is not None and not before.invite
            arguments += [self.limits.idle_s, int(uninvited and bool(member.invite))]
            verdict = await self._run(scripts.ADMIT, "members", *arguments)
            if verdict == SWARM_FULL.encode() and await self._make_room(now, is_open):
                verdict = await self._run(scripts.ADMIT, "members", *arguments)
            if verdict in (b"known", b"invited"):
                member_before = await self.member(member.node)
                if member_before is None:  # it gave way just now
                    return await self.admit(member, now)
                mine = member.invite if verdict == b"invited" else member_before.invite
                updated = msgspec.structs.replace(
                    member_before, name=member.name, model=member.model, banned="", invite=mine
                )
                await await_reply(self._server.hset(self._key("members"), member.node, pack_record(updated)))
                verdict = INVITE_OK.encode()
            await self._replicated()
        return str(verdict.decode())

    async def _make_room(self, now: float, is_open: bool) -> bool:
        """In a full swarm: whether members were removed. It reads the members in pieces."""
        if abs(now - self._looked) < LOOK_EVERY_S:
            return False
        self._looked = now
        cursor, dropped = 0, 0
        while dropped < GIVE_WAY:
            cursor, rows = await await_reply(self._server.hscan(self._key("members"), cursor, count=GIVE_WAY))
            dropped += await self._drop(rows, now, is_open) if rows else 0
            if not cursor:
                return dropped > 0
        self._looked = -math.inf
        return True

    async def _drop(self, rows: dict[bytes, bytes], now: float, is_open: bool) -> int:
        """How many of these members were removed."""
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


# What the Redis store keeps of members' custom tasks: an offer and its content for each name.


class RedisTasks(RedisMembers):
    """The part of RedisStore for tasks. Offers are stored apart from contents: they are read often."""

    async def put_task(self, task: TaskUpload) -> None:
        """See Store."""
        async with translate_redis_errors():
            await await_reply(self._server.hset(self._key("tasks"), task.offer.name, pack_record(task.offer)))
            await await_reply(self._server.hset(self._key("task bodies"), task.offer.name, pack_record(task)))
            await self._replicated()

    async def drop_task(self, name: str) -> bool:
        """See Store."""
        async with translate_redis_errors():
            existed = await await_reply(self._server.hdel(self._key("tasks"), name))
            await await_reply(self._server.hdel(self._key("task bodies"), name))
            await self._replicated()
        return bool(existed)

    async def tasks(self) -> list[TaskOffer]:
        """See Store."""
        async with translate_redis_errors():
            rows = await await_reply(self._server.hgetall(self._key("tasks")))
        return sorted((unpack_record(raw, TaskOffer) for raw in rows.values()), key=lambda offer: offer.name)

    async def task(self, hash: str) -> TaskUpload | None:
        """See Store."""
        name = next((offer.name for offer in await self.tasks() if offer.hash == hash), None)
        if name is None:
            return None
        async with translate_redis_errors():
            raw = await await_reply(self._server.hget(self._key("task bodies"), name))
        upload: TaskUpload | None = None if raw is None else unpack_record(raw, TaskUpload)
        return upload if upload is not None and upload.offer.hash == hash else None
