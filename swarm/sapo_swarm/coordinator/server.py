"""The coordinator's HTTP surface, API v1: stateless handlers over a Store, and the judgement of one round's upload."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.metrics import CachedValue, CoordinatorMetrics
from sapo_swarm.coordinator.records import (
    INVITE_OK,
    MINUTE,
    SWARM_FULL,
    WINDOW_MINUTES,
    ExchangeOutcome,
    Member,
    PoolEntry,
    RoundExchange,
    SwarmRecord,
    WindowStats,
)
from sapo_swarm.coordinator.requests import (
    AdmissionControl,
    Refusal,
    check_announced,
    check_protocol,
    check_signature,
    client_address,
    http_refusal,
    json_reply,
    parse_body,
    read_body,
    read_signature,
)
from sapo_swarm.coordinator.rules import (
    ORIGIN_IPV6_BITS,
    GroupVerdict,
    SwarmRules,
    judge_group,
    next_in_s,
    origin_tag,
    own_generator,
    prefix_of,
)
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store.base import Store, StoreError, StoreUnavailable
from sapo_swarm.coordinator.window_stats import build_leaderboard, rounds_per_s
from sapo_swarm.protocol.identity import SignatureHeaders, node_id
from sapo_swarm.protocol.invite import token_hash
from sapo_swarm.protocol.safe_text import is_plain_name, safe_text
from sapo_swarm.protocol.wire import (
    H_ORIGINS,
    H_PROTO,
    H_TIME,
    MAX_BODY,
    MEDIA_TYPE,
    GroupResult,
    JoinRequest,
    Limits,
    Receipt,
    RoundReply,
    SignedGroup,
    SwarmInfo,
    TaskOffer,
    Upload,
    decode_message,
    encode_message,
    group_id,
    sha256_hex,
    unpack_json,
)
from sapo_swarm.servers import limit_log_rate
from sapo_swarm.types import GENERATOR_VERSION, PROTOCOL_VERSION

# One round: judge an upload, and report what became of it. In between, the store does the exchange.

BUSY_IN_FLIGHT = 16
"""From this many requests in progress on, signatures of groups are checked by sample."""
PRIVATE = "private"
"""Replaces the name of a member's custom task on the status page, which anybody may see."""


@dataclass(frozen=True, slots=True)
class RoundHandler:
    """clock: Unix time. rng: jitter and the choice of samples."""

    settings: CoordinatorSettings
    rules: SwarmRules
    metrics: CoordinatorMetrics
    clock: Callable[[], float]
    rng: random.Random
    origin_key: bytes

    def _verdicts(
        self,
        node: str,
        key: bytes,
        groups: tuple[SignedGroup, ...],
        now: float,
        own: frozenset[tuple[str, str]] = frozenset(),
    ) -> list[GroupVerdict]:
        """Judge an upload. Under load one of its signatures is checked, and all of them if that one is false.

        Receivers check every signature anyway, and the request's own covers the body: this keeps the pool clean.
        """
        rules = replace(self.rules, own=own)
        spot = self.rng.randrange(len(groups)) if groups and self.metrics.in_flight > BUSY_IN_FLIGHT else -1
        if spot >= 0 and judge_group(groups[spot], node, key, rules, now).reason == "signature":
            spot = -1
        return [
            judge_group(group, node, key, rules, now, check_signature=spot == -1) for place, group in enumerate(groups)
        ]

    def judged(
        self,
        signed: SignatureHeaders,
        member: Member,
        round_id: str,
        upload: Upload,
        network: str = "",
        offers: Sequence[TaskOffer] = (),
    ) -> tuple[RoundExchange, list[str]]:
        """What goes to the store, and for each group "" or the reason it does not. network: that the upload came from, "" for
        this machine. offers: members' custom tasks that the member may know of."""
        origin = member.invite or origin_tag(self.origin_key, network)
        now = self.clock()
        own = frozenset((offer.name, offer.generator) for offer in offers)
        entries: list[PoolEntry | None] = []
        reasons: list[str] = []
        counts: dict[str, float] = {}
        for group, judged in zip(
            upload.groups, self._verdicts(signed.node, member.key, upload.groups, now, own), strict=True
        ):
            reasons.append(judged.reason)
            if judged.body is None:
                key = f"x/{judged.reason}"
                entries.append(None)
            else:
                task = own_generator(judged.body.ref)
                key = f"t/{PRIVATE if task else judged.body.ref.dataset}"
                packed = msgspec.msgpack.encode(group)
                entries.append(PoolEntry(group_id(group.body), judged.content, signed.node, packed, origin, task))
            counts[key] = counts.get(key, 0.0) + 1
        if upload.reward_local is not None:
            counts |= {"reward_sum": upload.reward_local, "reward_n": 1.0}
        exchange = RoundExchange(
            node=signed.node,
            nonce=signed.nonce,
            round_id=sha256_hex(f"{signed.node}/{round_id}".encode()),
            entries=tuple(entries),
            want=upload.want,
            have=frozenset(upload.have),
            now=now,
            counts=counts,
            accepts=frozenset(upload.accepts) & frozenset(generator for _, generator in own),
        )
        return exchange, reasons

    def reply(
        self, reasons: list[str], done: ExchangeOutcome, rounds_per_s: float, with_origins: bool = False
    ) -> bytes:
        """The packed RoundReply; also counts what it reports."""
        stored = (*done.stored, *(False for _ in reasons[len(done.stored) :]))
        results = tuple(
            _result("" if taken else reason or "duplicate") for reason, taken in zip(reasons, stored, strict=False)
        )
        for result in results:
            if result.accepted:
                self.metrics.accepted += 1
            else:
                self.metrics.refused[result.reason] += 1
        self.metrics.sampled += len(done.sample)
        reply = RoundReply(
            results=results,
            sample=[msgspec.Raw(blob) for blob in done.sample],
            receipts=tuple(Receipt(node=node, count=n) for node, n in list(done.receipts.items())[:64]),
            uptake=done.uptake,
            mine=done.mine,
            total=done.total,
            window_s=float(MINUTE * WINDOW_MINUTES),
            nodes=done.nodes,
            rounds_per_s=round(rounds_per_s, 3),
            pool=done.pool,
            next_in_s=next_in_s(done.nodes, self.settings.target_rounds_per_s, self.settings.round_every_s, self.rng),
            origins=tuple(origin_tag(self.origin_key, origin) for origin in done.origins) if with_origins else (),
        )
        body = encode_message(reply)
        self.metrics.bytes_out += len(body)
        return body


def _result(reason: str) -> GroupResult:
    return GroupResult(accepted=not reason, reason=reason)


# The coordinator's HTTP surface, API v1: stateless handlers over a Store.
#
# Order of a signed request: protocol, rate of the address, room (in flight), membership, clock, signature, rate of the
# node, body within time and size, ban once more, nonce. A round's path names the digest of its body, which is what is
# signed: the sender of a large body is known before it is read. Leaving has no body; a join's has its own small budget.
# Only what passed all of it counts against a node.

# What machines ask a coordinator about itself: whether it is alive, whether it can work, its counters.

READY_S = 10.0
"""A store that takes longer does not count as ready."""


def add_probes(
    app: web.Application,
    store: Store,
    metrics: CoordinatorMetrics,
    admission: AdmissionControl,
    stats: Callable[[], Awaitable[WindowStats]],
) -> None:
    """Routes /healthz, /readyz and /metrics."""

    async def get_healthz(_request: web.Request) -> web.Response:
        """200 while the process serves."""
        return web.Response(text="ok\n")

    async def get_readyz(_request: web.Request) -> web.Response:
        """200 while the store accepts writes. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(READY_S):
                await store.ping()
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {READY_S:g} s.") from error
        return web.Response(text="ready\n")

    async def get_metrics(request: web.Request) -> web.Response:
        """Prometheus text, for the host itself. Raises Refusal."""
        admission.host_only(request)
        window = await stats()
        return web.Response(text=metrics.text(window.pool, window.nodes))

    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/readyz", get_readyz)
    app.router.add_get("/metrics", get_metrics)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = limit_log_rate(logging.getLogger("sapo.coordinator.requests"))
MIN_CLIENT = "0.1.0"
STATS_ROWS = 100
STATS_TTL_S = 2.0
OWN_TASKS_TTL_S = 2.0
"""Other coordinators of the same store learn of a task within this time."""
MAX_JSON = 16 * 1024


class Coordinator:
    """Handlers of one process. clock: Unix time."""

    def __init__(self, settings: CoordinatorSettings, store: Store, swarm: SwarmRecord) -> None:
        self.settings = settings
        self.store = store
        self.swarm = swarm
        self.clock: Callable[[], float] = time.time
        rng = random.Random()
        self.metrics = CoordinatorMetrics()
        self.admission = AdmissionControl(settings, self.metrics, rng)
        self.epoch = int(self.clock())
        self.limits = Limits(
            round_every_s=settings.round_every_s, round_burst=settings.round_burst, group_age_s=settings.group_life_s
        )
        self.rules = SwarmRules(
            swarm=swarm.swarm,
            tasks=frozenset(settings.tasks),
            presets=frozenset(settings.presets),
            generator=GENERATOR_VERSION,
            max_age_s=settings.group_life_s,
            max_future_s=self.limits.clock_skew_s,
        )
        self.own_tasks = CachedValue(store.tasks, OWN_TASKS_TTL_S)
        key = hashlib.sha256(swarm.key).digest() if swarm.key else secrets.token_bytes(32)
        self.rounds = RoundHandler(settings, self.rules, self.metrics, self.clock, rng, key)
        self.stats = CachedValue(lambda: store.stats(self.clock(), STATS_ROWS), STATS_TTL_S)
        """The store's counters."""
        self.ending = asyncio.Event()
        """Set to make it stop in order."""
        self.of_member: Callable[[asyncio.BaseTransport], None] = lambda _transport: None
        """Called for every connection on which a member signed a request."""

    def application(self) -> web.Application:
        """The routes of API v1 and of the probes."""
        app = web.Application(middlewares=[self._shell])
        app.router.add_get("/v1/swarm", self.get_swarm)
        app.router.add_post("/v1/join", self.post_join)
        app.router.add_put("/v1/rounds/{id}", self.put_round)
        app.router.add_get("/v1/leaderboard", self.get_leaderboard)
        app.router.add_post("/v1/leave", self.post_leave)
        add_probes(app, self.store, self.metrics, self.admission, self.stats)
        return app

    # Around every request

    @web.middleware
    async def _shell(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        self.metrics.in_flight += 1
        try:
            response = await self._guarded(request, handler)
        finally:
            self.metrics.in_flight -= 1
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        self.metrics.served(route, response.status, time.perf_counter() - started)
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self.admission.request(request)
            response = await handler(request)
        except Refusal as refusal:
            response = refusal.response()
        except web.HTTPException as error:
            response = http_refusal(error).response()
        except StoreError as error:
            log.warning("store: %s", error)
            response = self.admission.busy("store_down", "The store does not answer.", 2.0).response()
        except Exception:
            log.exception("unexpected error in %s", request.method)
            response = Refusal("internal", "The coordinator failed; its log says why.").response()
        if not response.prepared:
            response.headers.update({H_PROTO: str(PROTOCOL_VERSION), "X-Content-Type-Options": "nosniff"})
            if "Cache-Control" not in response.headers:  # what a cache may keep carries no time
                response.headers.update({H_TIME: str(int(self.clock() * 1000)), "Cache-Control": "no-store"})
        return response

    async def authenticated(
        self, request: web.Request, body: bytes | str, paced: Callable[[str], None] | None = None
    ) -> tuple[SignatureHeaders, Member]:
        """The member that signed this request. body: itself or its digest. paced: its rate limit (a round's). Raises Refusal.
        The nonce is not used up yet."""
        signed = read_signature(request)
        member = await self.store.member(signed.node)
        if member is None:
            raise Refusal("unknown_node", "This node has not joined the swarm: join it with an invite.")
        now = self.clock()
        check_signature(request, signed, member.key, self.swarm.swarm, body, now, self.limits.clock_skew_s)
        if member.idle(now, self.settings.idle_days * 86_400.0):
            raise Refusal("unknown_node", "This node was silent for too long: it joins again with an invite.")
        if member.banned:
            raise _banned(member.banned)
        if member.waiting:
            raise self.admission.busy("waiting", "The host has not let this node in yet.", 10.0)
        (paced or self.admission.node)(signed.node)
        if request.transport is not None:
            self.of_member(request.transport)
        return signed, member

    # API v1

    async def get_swarm(self, request: web.Request) -> web.Response:
        """GET /v1/swarm: SwarmInfo."""
        check_protocol(request)
        stats = await self.stats()
        return json_reply(
            SwarmInfo(
                swarm=self.swarm.swarm,
                name=safe_text(self.swarm.name, 40, lines=False)[:40],
                protocol=PROTOCOL_VERSION,
                open=self.swarm.open,
                tasks=self.settings.tasks,
                presets=self.settings.presets,
                generator=GENERATOR_VERSION,
                shards=1,
                epoch=self.epoch,
                share_fraction=self.settings.share_fraction,
                min_client=MIN_CLIENT,
                limits=self.limits,
                nodes=stats.nodes,
                time=self.clock(),
            )
        )

    async def post_join(self, request: web.Request) -> web.Response:
        """POST /v1/join: admit the signing key by its invite. Raises Refusal."""
        check_protocol(request)
        self.admission.join(request)
        body = await self._body(request, MAX_JSON, member=False)
        signed = read_signature(request)
        join = parse_body(unpack_json, body, JoinRequest)
        key, now = bytes.fromhex(join.key), self.clock()
        if node_id(key) != signed.node:
            raise Refusal("bad_signature", "The node id does not belong to this key.")
        check_signature(request, signed, key, self.swarm.swarm, body, now, self.limits.clock_skew_s)
        if not is_plain_name(join.name):
            raise Refusal("bad_name", "The name holds control, private or invisible characters, or spaces around it.")
        if not await self.store.use_nonce(signed.nonce, now):
            raise Refusal("replayed", "This request was seen before.")
        invite = "" if self.swarm.open and not join.invite else token_hash(join.invite)
        wait = self.settings.approve
        member = Member(
            node=signed.node, key=key, name=join.name, model=join.model, joined=now, invite=invite, waiting=wait
        )
        verdict = await self.store.admit(member, now)
        if verdict == SWARM_FULL:
            raise self.admission.busy("full", "This swarm admits no more nodes.", 600.0)
        if verdict != INVITE_OK:
            raise Refusal(
                f"invite_{verdict}", f"The invite is {verdict.replace('_', ' ')}: ask the host for a new one."
            )
        return await self.get_swarm(request)

    async def put_round(self, request: web.Request) -> web.Response:
        """PUT /v1/rounds/{id}: store the groups, answer with a sample. Raises Refusal."""
        check_protocol(request)
        if request.content_type != MEDIA_TYPE:
            raise Refusal("unsupported_media", f"A round is sent as {MEDIA_TYPE}.")
        check_announced(request, MAX_BODY)
        round_id = request.match_info["id"]
        signed, member = await self.authenticated(request, round_id)
        body = await self._body(request, MAX_BODY, member=True)
        self.metrics.bytes_in += len(body)
        if round_id != sha256_hex(body):
            raise Refusal("body_mismatch", "The path must name the SHA-256 of the body.")
        upload = parse_body(decode_message, body, Upload)
        network = prefix_of(client_address(request, self.settings.trust_proxy), ORIGIN_IPV6_BITS)
        offers = await self.offered_to(member)
        exchange, reasons = self.rounds.judged(signed, member, round_id, upload, network, offers)
        done = await self.store.exchange(exchange)
        if done.banned:
            raise _banned(done.banned)
        if done.replayed:
            raise Refusal("replayed", "This request was seen before: sign each attempt anew.")
        rate = rounds_per_s(await self.stats(), self.clock())
        reply = self.rounds.reply(reasons, done, rate, H_ORIGINS in request.headers)
        return web.Response(body=reply, content_type=MEDIA_TYPE)

    async def _body(self, request: web.Request, limit: int, member: bool) -> bytes:
        """The body. While it is in transit the request does not count as being served: it must not take the place of others."""
        with self.admission.reading(request, limit, member):
            self.metrics.in_flight -= 1
            try:
                return await read_body(request, self.settings.body_s, limit)
            finally:
                self.metrics.in_flight += 1

    async def get_leaderboard(self, request: web.Request) -> web.Response:
        """GET /v1/leaderboard: Leaderboard."""
        check_protocol(request)
        return json_reply(build_leaderboard(await self.stats(), self.clock()))

    async def post_leave(self, request: web.Request) -> web.Response:
        """POST /v1/leave: take the node's groups out of the pool. Raises Refusal."""
        check_protocol(request)
        check_announced(request, 0)
        signed, _ = await self.authenticated(request, b"")
        if not await self.store.use_nonce(signed.nonce, self.clock()):
            raise Refusal("replayed", "This request was seen before.")
        await self.store.leave(signed.node)
        return web.Response(status=204)

    async def offered_to(self, member: Member) -> Sequence[TaskOffer]:
        """The members' custom tasks that this member may know of: none in an open swarm, nor for one admitted without an
        invite."""
        return () if self.swarm.open or not member.invite else await self.own_tasks()


def _banned(reason: str) -> Refusal:
    return Refusal("banned", f"This node was banned from the swarm: {reason}.")
