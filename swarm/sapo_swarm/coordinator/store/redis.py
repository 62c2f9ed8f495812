"""The shared store: Redis or Valkey >= 7.0, so that several coordinators can serve one swarm."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from typing import Any

from sapo_swarm.coordinator.group_pool import SampleDraw
from sapo_swarm.coordinator.records import (
    ACTIVE_S,
    AHEAD_S,
    MINUTE,
    WINDOW_MINUTES,
    ExchangeOutcome,
    NodeStats,
    PoolEntry,
    RoundExchange,
    WindowStats,
)
from sapo_swarm.coordinator.store import redis_scripts as scripts
from sapo_swarm.coordinator.store.base import StoreFormat, StoreUnavailable
from sapo_swarm.coordinator.store.redis_registry import (
    RedisTasks,
    member_of,
    pack_record,
    translate_redis_errors,
    unpack_record,
)
from sapo_swarm.protocol.wire import PER_SOURCE

# Who drew whose groups, until the server knows: sent along with the next exchange, or alone soon after.

CREDITED_S = 1.0
"""A sample is credited after this time if no other call came."""


class SamplingCredits:
    """write: sends the server what `taken()` returned, for that minute. What a killed coordinator has not sent is lost."""

    def __init__(self, write: Callable[[int, list[Any]], Awaitable[object]]) -> None:
        self._write = write
        self._minute = 0
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._task: asyncio.Task[None] | None = None

    def add(self, drawer: str, sources: Iterable[str], minute: int) -> None:
        """Record a sample that was given out."""
        self._drawn.update((drawer, source) for source in sources)
        self._minute = minute
        if self._drawn and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._soon())

    def taken(self) -> list[Any]:
        """Drawer, source and count of each pair; they count as sent from now on."""
        drawn, self._drawn = self._drawn, Counter()
        return [part for (drawer, source), times in drawn.items() for part in (drawer, source, times)]

    async def tell(self) -> None:
        """Send now. Raises what the server raises."""
        if self._drawn:
            await self._write(self._minute, self.taken())

    async def _soon(self, wait_s: float = CREDITED_S) -> None:
        """Send what no exchange took along by then. If the store is away, it is lost."""
        await asyncio.sleep(wait_s)
        with contextlib.suppress(StoreUnavailable):
            async with translate_redis_errors():
                await self.tell()

    async def close(self) -> None:
        """Send what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._soon(0.0)


# The shared store: Redis or Valkey >= 7.0, so that several coordinators can serve one swarm.
#
# A pool of keys with lifetimes: an exchange is one Lua call, which also reads random groups for the sample (one more
# call while the pool is thin). Who drew what is credited with the next call, or within a second, so a killed
# coordinator may lose the credit of its last samples, never a group. Nothing scans. The server's own maxmemory limits
# bytes; with `appendonly yes` and `appendfsync always` an acknowledged group survives what SQLite's would, with
# `everysec` all but the last two seconds'. With Sentinel (sentinel://) a group is acknowledged once a replica has it
# too: the death of the primary loses none.

SMALL_POOL = 64
"""A pool this small is read whole."""
SPARE = 3
"""Slots read beyond the missing groups: some are the reader's own, of one source, or gone."""
MAX_READS = 8
"""Reads for one sample at most."""
ONE_INVITE = 16
"""Samples that skip looking for groups of another invite, after one that looked and found none."""


class _Draw(SampleDraw):
    """A sample from what was read. read: by source, everything that the reader may have."""

    def __init__(self, exchange: RoundExchange) -> None:
        super().__init__(exchange.want, exchange.node, exchange.have, exchange.accepts)
        self.read: dict[str, dict[bytes, PoolEntry]] = {}

    def offer(self, slots: Iterable[bytes | str | None]) -> None:
        """The content of some slots, None for empty ones: one of each source is taken unless its invite has its share."""
        for raw in slots:
            entry = None
            with contextlib.suppress(StoreFormat):  # a damaged group is not given out, and harms no other
                entry = None if raw is None else unpack_record(raw, PoolEntry)
            if entry is None or not self.fits(entry):
                continue
            self.read.setdefault(entry.node, {})[entry.id] = entry
            if len(self.taken) < self.want and not self.of_node[entry.node] and not self.crowded(entry):
                self.take(entry)

    @property
    def enough(self) -> bool:
        """Together with those of a crowded invite there are as many sources as groups wanted."""
        return len(self.read) >= self.want

    @property
    def left_out(self) -> bool:
        """Nothing was taken from some source."""
        return len(self.read) > len(self.of_node)


class RedisStore(RedisTasks):
    """A Store; see the module."""

    _one_invite = 0
    """Samples that need not look for groups of another invite, see ONE_INVITE."""

    @cached_property
    def _credits(self) -> SamplingCredits:
        return SamplingCredits(lambda minute, drawn: self._run(scripts.CREDIT, "uptake", minute, *drawn))

    # The hot path

    async def use_nonce(self, nonce: str, _now: float) -> bool:
        """See Store."""
        life = int(self.limits.nonces_kept_s * 1000)
        async with translate_redis_errors():
            return bool(await self._server.set(self._key("nonce:", nonce), b"1", nx=True, px=life))

    async def exchange(self, exchange: RoundExchange) -> ExchangeOutcome:
        """See Store."""
        async with translate_redis_errors():
            await self._prune_if_due(exchange.now)
            reply = await self._run(scripts.EXCHANGE, "age", *self._arguments(exchange))
            if reply[0] == 2:
                return ExchangeOutcome(banned=reply[1].decode())
            if reply[0]:
                return ExchangeOutcome(replayed=True)
            if self.fails_over and any(entry is not None for entry in exchange.entries):
                await self._replicated()
            _, bits, uptake, receipts, mine, total, nodes, pool, drawn = reply
            first = dict(zip(drawn[::2], drawn[1::2], strict=True))
            sample = await self._sample(exchange, pool, first, PER_SOURCE) if exchange.want else []
            self._credits.add(exchange.node, (entry.node for entry in sample), int(exchange.now) // MINUTE)
            return ExchangeOutcome(
                stored=tuple(bit == 49 for bit in bits),  # b"1"
                sample=tuple(entry.blob for entry in sample),
                origins=tuple(entry.invite for entry in sample),
                uptake=uptake,
                receipts={receipts[i].decode(): int(receipts[i + 1]) for i in range(0, len(receipts), 2)},
                mine=int(float(mine)),
                total=int(total),
                nodes=nodes,
                pool=pool,
            )

    async def snapshot(self, now: float, want: int) -> tuple[bytes, ...]:
        """See Store."""
        everybody = RoundExchange(
            node="", nonce="", round_id="", entries=(), want=want, have=frozenset(), now=now, counts={}
        )
        async with translate_redis_errors():
            live = await self._server.zcount(self._key("age"), now - self.limits.lifetime_s, now + AHEAD_S)
            return tuple(entry.blob for entry in await self._sample(everybody, live, {}))

    async def leave(self, node: str) -> int:
        """See Store."""
        async with translate_redis_errors():
            return int(await self._run(scripts.DROP_NODE, f"own:{node}", node))

    async def close(self) -> None:
        """See Store."""
        if self._redis is not None:
            await self._credits.close()
        await super().close()

    async def stats(self, now: float, limit: int) -> WindowStats:
        """See Store."""
        newest = int(now) // MINUTE
        span = range(newest - WINDOW_MINUTES + 1, newest + 1)
        async with translate_redis_errors():
            await self._credits.tell()
            await self._prune_if_due(now)
            async with self._server.pipeline(transaction=False) as pipe:
                pipe.zrevrange(self._key("groups"), 0, limit - 1, withscores=True)
                pipe.get(self._key("total"))
                pipe.zcount(self._key("seen"), now - ACTIVE_S, now + AHEAD_S)
                pipe.hlen(self._key("members"))
                pipe.zcount(self._key("age"), now - self.limits.lifetime_s, now + AHEAD_S)
                for minute in span:
                    pipe.hgetall(self._key("min:", minute))
                top, total, nodes, members, pool, *minutes = await pipe.execute()
            rows = await self._rows([(node.decode(), int(groups)) for node, groups in top])
            return WindowStats(
                rows=rows,
                total=int(total or 0),
                nodes=nodes,
                members=members,
                pool=pool,
                minutes={
                    minute: {key.decode(): float(value) for key, value in counts.items()}
                    for minute, counts in zip(span, minutes, strict=True)
                    if counts
                },
            )

    async def _rows(self, top: list[tuple[str, int]]) -> tuple[NodeStats, ...]:
        if not top:
            return ()
        nodes = [node for node, _ in top]
        async with self._server.pipeline(transaction=False) as pipe:
            pipe.hmget(self._key("members"), nodes)
            pipe.hmget(self._key("banned"), nodes)
            pipe.hmget(self._key("drawn"), nodes)
            pipe.zmscore(self._key("seen"), nodes)
            members, banned, sampled, seen = await pipe.execute()
        return tuple(
            NodeStats(member=member_of(raw, ban), groups=groups, sampled=int(times or 0), seen=at or 0.0)
            for (_, groups), raw, ban, times, at in zip(top, members, banned, sampled, seen, strict=True)
            if raw is not None
        )

    def _arguments(self, exchange: RoundExchange) -> list[Any]:
        arguments: list[Any] = [
            exchange.now,
            exchange.node,
            exchange.nonce,
            int(self.limits.nonces_kept_s * 1000),
            exchange.round_id,
            int(self.limits.rounds_kept_s * 1000),
            self.limits.per_node,
            self.limits.capacity,
            int(self.limits.lifetime_s * 1000),
            int(exchange.now) // MINUTE,
            len(exchange.counts),
            ACTIVE_S,
            draws := exchange.want + SPARE if exchange.want else 0,
            len(credits := self._credits.taken()),
        ]
        for key, value in exchange.counts.items():
            arguments += [key, value]
        arguments.append(len(exchange.entries))
        for entry in exchange.entries:
            arguments += ["", ""] if entry is None else [entry.content, pack_record(entry)]
        return [*arguments, *(self._rng.random() for _ in range(draws)), *credits]

    async def _sample(
        self, exchange: RoundExchange, live: int, first: dict[int, bytes | None], per_source: int = 1
    ) -> list[PoolEntry]:
        """Uniform over `live` groups: random positions in the order of age, none twice, until enough sources are found; see
        GroupPool.sample. first: some that were read already. (While others upload, a position shifts to the next group.)"""
        draw = _Draw(exchange)
        tried = set(first)
        draw.offer(first.values())
        self._one_invite -= 1
        for _ in range(MAX_READS - bool(first)):
            missing = exchange.want - len(draw.taken)
            size = min(live - len(tried), live if live <= SMALL_POOL else missing + SPARE)
            if missing <= 0 or size <= 0 or (self._one_invite > 0 and draw.enough):
                break
            places: list[int] = []
            while len(places) < size:
                place = int(self._rng.random() * live)
                if place not in tried:
                    tried.add(place)
                    places.append(place)
            draw.offer(await self._run(scripts.READ, "age", exchange.now, *places))
        if len(draw.of_invite) > 1:
            self._one_invite = 0
        elif draw.left_out and self._one_invite <= 0:
            self._one_invite = ONE_INVITE
        sources: dict[str, list[str]] = {}
        for node, groups in draw.read.items():
            sources.setdefault(next(iter(groups.values())).invite, []).append(node)
        return draw.fill(self._rng, per_source, sources, lambda node: draw.read[node].values())

    async def _prune_if_due(self, now: float) -> None:
        """Subtract minutes that left the window from its totals; the first coordinator to come does it for all. After a clock
        was set back by more than coordinators' clocks may differ, the totals are counted anew."""
        edge = int(now) // MINUTE - WINDOW_MINUTES
        if edge != self._pruned:
            self._pruned = edge
            oldest = edge - WINDOW_MINUTES // 2  # older minutes may have expired themselves: count anew
            await self._run(scripts.PRUNE, "pruned", edge, oldest)
