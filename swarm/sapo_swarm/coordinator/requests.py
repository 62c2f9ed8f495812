"""Requests in, problem details out: who sent it, whether it is whole and new, who is admitted, and how it is refused (RFC
9457)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import hdrs, web

from sapo_swarm.coordinator.listener import EVERYWHERE
from sapo_swarm.coordinator.metrics import CoordinatorMetrics
from sapo_swarm.coordinator.rules import UNKNOWN, TokenBuckets, add_jitter, prefix_of
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.identity import SignatureHeaders, request_text, verify_signature
from sapo_swarm.protocol.wire import (
    H_NODE,
    H_NONCE,
    H_PROTO,
    H_SIGNATURE,
    H_TIME,
    MAX_BODY,
    PROBLEM_TYPE,
    Nonce,
    Problem,
    WireError,
)
from sapo_swarm.types import PROTOCOL_VERSION, NodeId

# Refusals as RFC 9457 problem details with stable codes.

CODES: dict[str, int] = {
    "malformed": 400,
    "body_mismatch": 400,
    "unknown_node": 401,
    "bad_signature": 401,
    "clock_skew": 401,
    "bad_admin_key": 401,
    "banned": 403,
    "invite_unknown": 403,
    "invite_expired": 403,
    "invite_used_up": 403,
    "invite_revoked": 403,
    "loopback_only": 403,
    "open_swarm": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "replayed": 409,
    "too_large": 413,
    "unsupported_media": 415,
    "expectation_failed": 417,
    "bad_name": 422,
    "protocol": 426,
    "rate_limited": 429,
    "internal": 500,
    "full": 503,
    "waiting": 503,
    "busy": 503,
    "store_down": 503,
    "stopping": 503,
}
"""Every code a client may meet, with its HTTP status."""


class Refusal(Exception):
    """A request that is not served. detail: a sentence for people. retry_after_s: when to retry."""

    def __init__(self, code: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return CODES[self.code]

    def response(self) -> web.Response:
        """The problem details as application/problem+json."""
        problem = Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            retry_after_s=None if self.retry_after_s is None else round(self.retry_after_s, 3),
        )
        headers = {} if self.retry_after_s is None else {"Retry-After": str(math.ceil(self.retry_after_s))}
        return web.Response(
            status=self.status, body=msgspec.json.encode(problem), content_type=PROBLEM_TYPE, headers=headers
        )


def http_refusal(error: web.HTTPException) -> Refusal:
    """The router's refusal in our own words."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 417: "expectation_failed"}
    code = codes.get(error.status, "malformed" if error.status < 500 else "internal")
    details = {
        "not_found": "There is nothing here.",
        "method_not_allowed": f"Allowed: {error.headers.get(hdrs.ALLOW, 'nothing')}.",
    }
    return Refusal(code, details.get(code, error.reason))


# Reading and authenticating a request: who sent it, is it whole, is it new.

T = TypeVar("T")


class _Headers(msgspec.Struct, frozen=True):
    """Patterns of the signature headers."""

    node: NodeId
    nonce: Nonce


def check_protocol(request: web.Request) -> None:
    """Raises Refusal("protocol") unless the client speaks this major version."""
    spoken = request.headers.get(H_PROTO, "")
    if spoken != str(PROTOCOL_VERSION):
        raise Refusal(
            "protocol",
            f"This coordinator speaks protocol {PROTOCOL_VERSION}; send `{H_PROTO}: {PROTOCOL_VERSION}`. "
            "Update sapo-desktop on the older side.",
        )


def refuse_odd_expectations(server: web.Server) -> None:
    """Refuse an Expect header that is not text: aiohttp quotes it in its answer, which then cannot be written."""
    inner = server.request_handler

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if not request.headers.get(hdrs.EXPECT, "").isascii():
            return Refusal("expectation_failed", "The only expectation that is met here is 100-continue.").response()
        return await inner(request)

    server.request_handler = handler


def client_address(request: web.Request, trust_proxy: bool) -> str:
    """The peer's address; behind a trusted proxy on loopback, the last one it forwarded (some proxies add to the client's own
    header, others send a second one)."""
    address = request.remote or ""
    forwarded = request.headers.getall("X-Forwarded-For", [])
    if trust_proxy and forwarded and prefix_of(address) == "":
        return forwarded[-1].rsplit(",", 1)[-1].strip() or UNKNOWN
    return address


def check_announced(request: web.Request, limit: int) -> None:
    """Check what the head says about the body. Raises Refusal: unsupported_media, too_large."""
    if "Content-Encoding" in request.headers:
        raise Refusal("unsupported_media", "Send the body without Content-Encoding: it is compressed already.")
    if request.content_length is not None and request.content_length > limit:
        raise Refusal("too_large", f"The body has {request.content_length} bytes; the limit is {limit}.")


async def read_body(request: web.Request, deadline_s: float, limit: int = MAX_BODY) -> bytes:
    """The body as received, never decompressed. Raises Refusal: unsupported_media, too_large, timeout."""
    check_announced(request, limit)
    body = bytearray()
    try:
        async with asyncio.timeout(deadline_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise Refusal("too_large", f"The body has more than {limit} bytes.")
    except TimeoutError as error:
        raise Refusal("timeout", f"The body did not arrive within {deadline_s:.0f} s.") from error
    except (ConnectionError, aiohttp.ClientPayloadError) as error:  # nobody is left to be told
        raise Refusal("timeout", "The connection ended before the body was there.") from error
    return bytes(body)


def read_signature(request: web.Request) -> SignatureHeaders:
    """The signature headers. Raises Refusal("bad_signature") if one is missing or malformed."""
    headers = request.headers
    try:
        parts = msgspec.convert({"node": headers[H_NODE], "nonce": headers[H_NONCE]}, _Headers)
        text = headers[H_TIME]
        if len(text) > 16 or not (text.isascii() and text.isdigit()) or len(headers[H_SIGNATURE]) != 128:
            raise ValueError
        return SignatureHeaders(parts.node, int(text), parts.nonce, bytes.fromhex(headers[H_SIGNATURE]))
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        names = ", ".join((H_NODE, H_TIME, H_NONCE, H_SIGNATURE))
        raise Refusal("bad_signature", f"The request must carry well-formed {names}.") from error


def check_signature(
    request: web.Request, signed: SignatureHeaders, key: bytes, swarm: str, body: bytes | str, now: float, skew_s: float
) -> None:
    """Raises Refusal: clock_skew, bad_signature. The nonce is the store's business."""
    if abs(signed.ts / 1000 - now) > skew_s:
        raise Refusal(
            "clock_skew",
            f"The request is dated {signed.ts / 1000 - now:+.0f} s from this clock; {skew_s:.0f} s are allowed.",
        )
    text = request_text(request.method, request.rel_url.raw_path, swarm, signed.ts, signed.nonce, body)
    if not verify_signature(key, signed.signature, text):
        raise Refusal("bad_signature", "The signature does not match the request, the swarm or the node's key.")


def parse_body(parse: Callable[[bytes, type[T]], T], body: bytes, kind: type[T]) -> T:
    """The struct in a body. parse: of its encoding. Raises Refusal."""
    try:
        return parse(body, kind)
    except WireError as error:
        raise Refusal(error.code, str(error)) from error


def json_reply(message: msgspec.Struct) -> web.Response:
    """The struct as JSON."""
    return web.Response(body=msgspec.json.encode(message), content_type="application/json")


# Who is admitted: rates of networks, nodes and joins, room for one more request, what only the host itself may request.

UNREAD_BYTES = 32 * 2**20
"""Bytes of members' bodies in transit, all together;"""
UNREAD_BYTES_OF_STRANGERS = 8 * 2**20
"""of bodies whose sender is not known before they are read;"""
UNREAD_PER_NETWORK = 4 * 2**20
"""and of either kind per network."""
FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")
"""Headers by which a proxy reveals itself."""
TASKS_PER_S, TASKS_BURST = 0.1, 20
"""Requests of a member for tasks: each may be answered with two megabytes."""


class AdmissionControl:
    """Every method raises Refusal for what is not admitted. rng: jitter of Retry-After."""

    def __init__(self, settings: CoordinatorSettings, metrics: CoordinatorMetrics, rng: random.Random) -> None:
        self.stopping = False
        self._settings, self._metrics, self._rng = settings, metrics, rng
        self._unread: Counter[bool] = Counter()
        self._unread_of: Counter[tuple[bool, str]] = Counter()
        self._nodes = TokenBuckets(1.0 / settings.round_every_s, settings.round_burst)
        self._tasks = TokenBuckets(TASKS_PER_S, TASKS_BURST)
        self._prefixes = TokenBuckets(settings.prefix_per_s, 2 * settings.prefix_per_s)
        self._joins = TokenBuckets(settings.joins_per_s, 40 * settings.joins_per_s)

    def request(self, request: web.Request) -> None:
        """Check any request."""
        if self.stopping:
            raise self.busy("stopping", "The coordinator is shutting down.", 5.0)
        self._network(self._prefixes, request, "Too many requests from this network.")
        if self._metrics.in_flight > self._settings.in_flight:
            raise self.busy("busy", "The coordinator serves as many requests as it can.", 1.0)

    @contextlib.contextmanager
    def reading(self, request: web.Request, limit: int, member: bool) -> Iterator[None]:
        """Reserve room for a body of at most `limit` bytes while it arrives, per network and in total. member: a member
        signed its digest; strangers never take the room of members."""
        size = min(limit, request.content_length or limit)
        network = prefix_of(client_address(request, self._settings.trust_proxy))
        limit_bytes, of = UNREAD_BYTES if member else UNREAD_BYTES_OF_STRANGERS, (member, network)
        if self._unread[member] + size > limit_bytes or (network and self._unread_of[of] + size > UNREAD_PER_NETWORK):
            raise self.busy("busy", "Too many bodies are under way.", 2.0)
        self._unread[member] += size
        self._unread_of[of] += size
        try:
            yield
        finally:
            self._unread[member] -= size
            self._unread_of[of] -= size
            if not self._unread_of[of]:
                del self._unread_of[of]

    def join(self, request: web.Request) -> None:
        """Check a join from this network."""
        self._network(self._joins, request, "Too many nodes join from this network.")

    def node(self, node: str) -> None:
        """Check a signed request of a member."""
        wait = self._nodes.take(node, time.monotonic())
        if wait:
            raise self.busy("rate_limited", f"One round every {self._settings.round_every_s:g} s.", wait)

    def task(self, node: str) -> None:
        """Check a member's request for tasks."""
        wait = self._tasks.take(node, time.monotonic())
        if wait:
            raise self.busy("rate_limited", "Too many requests for tasks.", wait)

    def host_only(self, request: web.Request) -> None:
        """The peer itself (no proxy) must be on this machine and address it by name: another site's host name may point here.
        A coordinator that listens on one address only is asked there, from that address."""
        name, chosen = request.host.rpartition(":")[0].strip("[]") or request.host, self._settings.host
        is_local, named = not prefix_of(request.remote or UNKNOWN), is_loopback(name)
        if chosen not in EVERYWHERE:
            own = request.get_extra_info("sockname", ("",))[0]
            is_local, named = is_local or request.remote == own, named or name.lower() in (own, chosen.lower())
        if not is_local or not named or any(name in request.headers for name in FORWARDED):
            raise Refusal("loopback_only", "This is answered on the host itself only.")

    def busy(self, code: str, detail: str, wait_s: float) -> Refusal:
        """To be raised: retry after about this many seconds."""
        wait = add_jitter(wait_s, self._rng)
        return Refusal(code, f"{detail} Come again in {wait:.1f} s.", wait)

    def _network(self, buckets: TokenBuckets, request: web.Request, detail: str) -> None:
        prefix = prefix_of(client_address(request, self._settings.trust_proxy))
        wait = buckets.take(prefix, time.monotonic()) if prefix else 0.0
        if wait:
            raise self.busy("rate_limited", detail, wait)
