"""A node's side of the coordinator: join once, then one request a round that uploads and samples.

The network is never on the critical path: `exchange` gives a typed result and raises nothing for a coordinator that
is away, slow or refusing; it then waits with full-jitter back-off, and what could not be sent is dropped.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.reasons import in_words
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.snapshot import Snapshot, SnapshotNews, opened
from sapo_swarm.protocol.task_offer import TaskOffer, TaskOffers, unpack_task
from sapo_swarm.protocol.transport import TIMEOUT_S, CoordinatorError, Refused, Transport, Unreachable, parsed
from sapo_swarm.protocol.wire import (
    MAX_GROUPS,
    MEDIA_TYPE,
    REFUSALS,
    JoinRequest,
    Leaderboard,
    Receipt,
    RoundReply,
    SignedGroup,
    SwarmInfo,
    Upload,
    WireError,
    decode,
    digest,
    encode,
    group_id,
    label,
    unpack,
)
from sapo_swarm.tasks.own.folder import OwnTask

__all__ = ["CoordinatorError", "ExchangeResult", "NodeClient", "Refused", "Unreachable"]

MAX_BACKOFF_S = 300.0
LARGEST_EXPONENT = 9
"""2^9 s are more than MAX_BACKOFF_S, and after days of failures 2^n is too large for a float."""
REMEMBERED = 128
"""Ids of groups received lately, so that they are not sent again."""
OTHER = "other"
"""Reasons that this version does not know are counted as one: a coordinator that invents them fills no journal."""
LARGE_POOL = 4096
"""In a pool so large nothing comes twice; the ids stay at home."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """What one exchange did. connected is False when nothing was exchanged; sentence then says why and until when.

    sent: groups offered; accepted: of those; refused: reason -> count. sample: groups of others, unjudged: give them
    to a Receiver. receipts: who drew mine since the last exchange; uptake: times ever. mine / total: accepted groups
    in the last window_s seconds.
    """

    connected: bool
    sentence: str
    code: str = ""
    sent: int = 0
    accepted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    sample: tuple[msgspec.Raw, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    uptake: int = 0
    mine: int = 0
    total: int = 0
    window_s: float = 0.0
    nodes: int = 0
    rounds_per_s: float = 0.0
    pool: int = 0

    @property
    def share(self) -> float:
        """Swarm share in [0, 1]: my accepted groups / all accepted groups in the window."""
        return min(1.0, self.mine / self.total) if self.total else 0.0


class NodeClient:
    """One node's connection to one coordinator. Use as `async with NodeClient(invite, identity) as client`.

    clock: monotonic seconds, for waiting. wall: Unix time; the coordinator's own time corrects it.
    """

    def __init__(
        self,
        invite: Invite,
        identity: Identity,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.invite = invite
        self.identity = identity
        self.failures = 0
        self.next_at = 0.0
        """When the next exchange will go out, on the client's clock."""
        self._clock = clock
        self._rng = rng or random.Random()
        self._transport = Transport(invite, identity, wall, timeout_s)
        self._have: deque[bytes] = deque(maxlen=REMEMBERED)
        self._pool = 0

    async def __aenter__(self) -> NodeClient:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    @property
    def bytes_sent(self) -> int:
        """Of request bodies, ever."""
        return self._transport.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Of answers' bodies, ever."""
        return self._transport.bytes_received

    def unix_time(self) -> float:
        """Unix time on the coordinator's clock: what groups are dated with."""
        return self._transport.unix_time()

    # Called by a person: raises

    async def join(self, name: str = "", model: str = "") -> SwarmInfo:
        """Enter the swarm; joining again is harmless. Raises Unreachable, Refused."""
        request = JoinRequest(
            key=self.identity.public_key.hex(),
            invite=self.invite.token,
            name=safe_text(name, lines=False)[:40].strip(),
            model=label(model),
        )
        body = msgspec.json.encode(request)
        return parsed(await self._transport.signed("POST", "/v1/join", body, "application/json"), SwarmInfo)

    async def info(self) -> SwarmInfo:
        """Raises Unreachable, Refused."""
        return parsed(await self._transport.get("/v1/swarm"), SwarmInfo)

    async def leaderboard(self) -> Leaderboard:
        """Raises Unreachable, Refused."""
        return parsed(await self._transport.get("/v1/leaderboard"), Leaderboard)

    async def tasks(self) -> tuple[TaskOffer, ...]:
        """The tasks of members' own that this swarm trains on. Raises Unreachable, Refused."""
        body = await self._transport.signed("GET", "/v1/tasks", b"", "application/json")
        return parsed(body, TaskOffers).tasks

    async def task(self, offer: TaskOffer) -> OwnTask:
        """Fetch a task, read as strictly as a folder. Nothing of it is stored. Raises Unreachable, Refused, BadTask."""
        path = f"/v1/tasks/{offer.hash}"
        body = await self._transport.signed("GET", path, b"", "application/json", offer.packed)
        return await asyncio.to_thread(unpack_task, offer, body)

    async def leave(self) -> None:
        """Take this node's groups out of the pool. Raises Unreachable, Refused."""
        await self._transport.signed("POST", "/v1/leave", b"", "application/json")

    async def snapshot(self, known: str) -> tuple[SnapshotNews, Snapshot | None]:
        """Of the swarm's pool: which is the newest, and itself where its id is not `known`.

        Raises Unreachable, Refused (code not_found: this coordinator makes none).
        """
        raw = await self._transport.signed("GET", "/v1/snapshots/newest", b"", "application/json")
        news = parsed(raw, SnapshotNews)
        if news.id == known:
            return news, None
        data = await self._transport.get(f"/v1/snapshots/{news.id}")
        try:
            return news, opened(data, news, self.invite.swarm, self.invite.fingerprint)
        except WireError as error:
            raise Refused("bad_reply", str(error)) from error

    # Every round: never raises for the network

    @property
    def wait_s(self) -> float:
        """Seconds until the next exchange would go out; 0 = now."""
        return max(0.0, self.next_at - self._clock())

    async def exchange(
        self,
        groups: Sequence[SignedGroup],
        want: int,
        reward_local: float | None = None,
        accepts: Iterable[str] = (),
    ) -> ExchangeResult:
        """Upload this round's groups (at most MAX_GROUPS; the rest is dropped) and sample up to `want` of others, of members' own
        tasks only those whose generators are in `accepts`.

        Before `next_at` nothing is sent and the groups are dropped: stale ones are never flushed later.
        """
        if self.wait_s > 0:
            return ExchangeResult(False, f"The next exchange is in {self.wait_s:.0f} s.", "waiting")
        groups = tuple(groups)[:MAX_GROUPS]
        have = tuple(self._have) if self._pool <= LARGE_POOL else ()
        try:
            accepted = tuple(accepts)
            body = encode(Upload(groups=groups, want=want, have=have, reward_local=reward_local, accepts=accepted))
            path = f"/v1/rounds/{digest(body)}"
            answer = decode(await self._transport.signed("PUT", path, body, MEDIA_TYPE), RoundReply)
        except (CoordinatorError, WireError) as error:
            return self._failed(error, len(groups))
        result = self._done(answer, len(groups))
        self.failures, self._pool = 0, answer.pool
        self.next_at = self._clock() + answer.next_in_s
        return result

    def _done(self, answer: RoundReply, sent: int) -> ExchangeResult:
        refused: dict[str, int] = {}
        for result in answer.results:
            if not result.accepted:
                reason = result.reason if result.reason in REFUSALS else OTHER
                refused[reason] = refused.get(reason, 0) + 1
        for raw in answer.sample:
            try:
                self._have.append(group_id(unpack(raw, SignedGroup).body))
            except WireError:
                continue  # the receiver counts it
        return ExchangeResult(
            connected=True,
            sentence=_sentence(answer, sent, refused),
            sent=sent,
            accepted=sum(result.accepted for result in answer.results),
            refused=refused,
            sample=tuple(answer.sample),
            receipts=answer.receipts,
            uptake=answer.uptake,
            mine=answer.mine,
            total=answer.total,
            window_s=answer.window_s,
            nodes=answer.nodes,
            rounds_per_s=answer.rounds_per_s,
            pool=answer.pool,
        )

    def _failed(self, error: Exception, sent: int) -> ExchangeResult:
        """Full jitter: random(0, min(300, 2^n)), or what the coordinator asked for."""
        self.failures += 1
        wait = self._rng.uniform(0.0, min(MAX_BACKOFF_S, 2.0 ** min(self.failures, LARGEST_EXPONENT)))
        code = "unreachable"
        if isinstance(error, Refused):
            code = error.code
            wait = max(wait, min(error.retry_after_s or 0.0, MAX_BACKOFF_S))
        elif isinstance(error, WireError):
            code = "bad_reply"
        self.next_at = self._clock() + wait
        return ExchangeResult(False, f"{error} Next try in {wait:.0f} s; training goes on alone.", code, sent=sent)


def _sentence(answer: RoundReply, sent: int, refused: dict[str, int]) -> str:
    """How it stands with the swarm, for people: being connected is not yet taking part."""
    nodes = f"{answer.nodes} node{'' if answer.nodes == 1 else 's'}"
    said = f"Connected: {nodes}, {answer.rounds_per_s:.2f} rounds/s."
    if sent and sum(refused.values()) == sent:
        return f"{said} None of the last {sent} groups was taken: {', '.join(in_words(refused))}."
    return said
