"""A node's side of the coordinator: join once, then one request per round that uploads and samples.

It builds on the transport: signed, pinned, bounded, with the coordinator's clock; failures are one of two errors.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from sapo_swarm.errors import SwarmError
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.snapshot import PoolSnapshot, SnapshotNews, open_snapshot
from sapo_swarm.protocol.wire import (
    H_ORIGINS,
    H_PROTO,
    H_TIME,
    MAX_BODY,
    MAX_GROUPS,
    MEDIA_TYPE,
    REFUSALS,
    JoinRequest,
    Leaderboard,
    Problem,
    Receipt,
    RoundReply,
    SignedGroup,
    SwarmInfo,
    TaskOffer,
    TaskOffers,
    Upload,
    WireError,
    decode_message,
    encode_message,
    group_id,
    printable_label,
    refusals_in_words,
    sha256_hex,
    unpack_json,
    unpack_msgpack,
    unpack_task,
)
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.types import PROTOCOL_VERSION, UNREADABLE

# One request to a coordinator: signed, pinned, bounded, with its clock; failures are one of two errors.
#
# Error tree::
#
#     CoordinatorError       base; str() is a sentence for people
#     ├── Unreachable        no answer; carries why
#     └── Refused            an answer that says no; `code` is stable

TIMEOUT_S = 10.0
INTERIM_ANSWERS = 8
KEEPALIVE_S = 60.0
"""Longer than a round, shorter than the coordinator's patience: one handshake for many rounds."""


class CoordinatorError(SwarmError):
    """The coordinator did not do what was asked; the message is a sentence."""


class Unreachable(CoordinatorError):
    """No answer."""


class Refused(CoordinatorError):
    """The coordinator said no. retry_after_s: when to retry, if it said."""

    def __init__(self, code: str, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.retry_after_s = retry_after_s


class BoundedResponse(aiohttp.ClientResponse):
    """A response with a limit on interim responses (1xx): without one they could keep a client busy for ever."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head. Raises ClientPayloadError after INTERIM_ANSWERS."""
        protocol = connection.protocol
        assert protocol is not None
        read, left = type(protocol).read, INTERIM_ANSWERS + 1

        async def counted() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise aiohttp.ClientPayloadError("it sends interim answers without end")
            return await read(protocol)

        protocol.read = counted  # type: ignore[method-assign]
        try:
            return await super().start(connection)
        finally:
            del protocol.read


class DaemonResolver(AbstractResolver):
    """Looks names up in daemon threads: where a name server hangs, so would the end of a program that uses the loop's pool."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError."""
        answer: Future[list[ResolveResult]] = Future()
        threading.Thread(target=_look_up, args=(answer, host, port, family), name="names", daemon=True).start()
        return await asyncio.wrap_future(answer)

    async def close(self) -> None:
        """There is nothing to release."""


def _look_up(answer: Future[list[ResolveResult]], host: str, port: int, family: int) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    numbers, flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV, socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        answer.set_result(
            [
                ResolveResult(
                    hostname=host,
                    host=socket.getnameinfo(address, numbers)[0],  # with the scope of a link-local one
                    port=int(address[1]),
                    family=kind,
                    proto=protocol,
                    flags=flags,
                )
                for kind, _, protocol, _, address in socket.getaddrinfo(
                    host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
            ]
        )
    except Exception as error:  # for the caller
        answer.set_exception(error)


def open_session(
    fingerprint: str, timeout_s: float, headers: Mapping[str, str] = {}, url: str | None = None
) -> aiohttp.ClientSession:
    """A session without cookies and compression; call on the event loop. fingerprint: SHA-256 in hex of the only trusted
    certificate; "": any that a known authority vouches for. url: prefix of every path."""
    pin: aiohttp.Fingerprint | bool = aiohttp.Fingerprint(bytes.fromhex(fingerprint)) if fingerprint else True
    return aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=2, ssl=pin, keepalive_timeout=KEEPALIVE_S, resolver=DaemonResolver()),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(5.0, timeout_s)),
        response_class=BoundedResponse,
        auto_decompress=False,
        headers={"User-Agent": "sapo-desktop", "Accept-Encoding": "identity", **headers},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class CoordinatorTransport:
    """Requests of one node to one coordinator; call open() first. bytes_sent, bytes_received: bodies, in total.

    wall: Unix time; corrected by the coordinator's own time in its answers to signed requests.
    """

    def __init__(
        self, invite: Invite, identity: Identity, wall: Callable[[], float] = time.time, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._invite, self._identity, self._wall = invite, identity, wall
        self._timeout_s = timeout_s
        self._offset = 0.0
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Call on the event loop."""
        fingerprint, protocol = self._invite.fingerprint, {H_PROTO: str(PROTOCOL_VERSION), H_ORIGINS: "1"}
        self._session = open_session(fingerprint, self._timeout_s, protocol, self._invite.url)

    def unix_time(self) -> float:
        """Seconds since the epoch on the coordinator's clock, as far as known: this machine's may be wrong."""
        return self._wall() + self._offset

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str) -> bytes:
        """The body of a 2xx answer to an unsigned request. Raises Unreachable, Refused."""
        return await self._request("GET", path)

    async def signed(self, method: str, path: str, body: bytes, media: str, limit: int = MAX_BODY) -> bytes:
        """The body of a 2xx answer, of at most `limit` bytes. A request that failed because of a wrong clock or a broken
        connection is sent once more.

        Raises Unreachable, Refused.
        """
        for attempt in (1, 2):
            ts = int(self.unix_time() * 1000)
            headers = self._identity.sign_request(method, path, self._invite.swarm, ts, body).headers()
            headers["Content-Type"] = media
            try:
                return await self._request(method, path, body, headers, limit)
            except Refused as refused:
                if refused.code != "clock_skew" or attempt == 2:
                    raise
            except Unreachable as error:
                if attempt == 2 or not isinstance(error.__cause__, aiohttp.ServerDisconnectedError):
                    raise
        raise AssertionError("two attempts")

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        limit: int = MAX_BODY,
    ) -> bytes:
        if self._session is None:
            raise Unreachable("The client is closed.")
        self.bytes_sent += len(body)
        try:
            async with self._session.request(
                method, path, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                if headers is not None:  # signed, so no cache answers
                    self._correct_clock(response.headers.get(H_TIME, ""))
                content = bytearray()
                while len(content) <= limit and (more := await response.content.read(limit + 1 - len(content))):
                    content += more
        except aiohttp.ServerFingerprintMismatch as error:
            raise Unreachable(
                f"{self._invite.host} shows another certificate than the invite's: somebody is in between, or the "
                "swarm was founded anew. Ask the host for a new invite."
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"{self._invite.host}:{self._invite.port} does not answer in time.") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise Unreachable(f"{self._invite.host}:{self._invite.port} cannot be reached: {why_not(error)}") from error
        self.bytes_received += len(content)
        if len(content) > limit:
            raise Refused("bad_reply", "The coordinator's answer is longer than the protocol allows.")
        return require_success(response.status, bytes(content))

    def _correct_clock(self, text: str) -> None:
        if text.isascii() and text.isdigit() and len(text) <= 16:
            self._offset = int(text) / 1000 - self._wall()


def why_not(error: Exception) -> str:
    """Why a request got no answer, in words."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    match cause:
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return "its name is not known. Is this machine online?"
        case ssl.SSLError() | aiohttp.ClientSSLError():
            return "no safe connection comes about. Ask the host for a new invite."
        case ConnectionRefusedError():
            return "nothing listens there. Is the coordinator running?"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "it ended the connection."
        case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
            return "there is no way to it. Is this machine online?"
    return f"{safe_text(str(error), 120, lines=False) or type(error).__name__}."


def require_success(status: int, body: bytes) -> bytes:
    """The body of a 2xx answer. Raises Refused."""
    if 200 <= status < 300:
        return body
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except UNREADABLE:
        raise Refused("bad_reply", f"The coordinator answered {status} without a reason.") from None
    sentence = safe_text(problem.detail or problem.title, 300, lines=False)
    raise Refused(problem.code, sentence, problem.retry_after_s)


_T = TypeVar("_T")


def parse_reply(body: bytes, kind: type[_T]) -> _T:
    """The JSON body of an answer. Raises Refused."""
    try:
        return unpack_json(body, kind)
    except WireError as error:
        raise Refused("bad_reply", "The coordinator's answer does not parse: is it another version?") from error


# A node's side of the coordinator: join once, then one request per round that uploads and samples.
#
# The network is never on the critical path: `exchange` returns a typed result and raises nothing if a coordinator is
# away, slow or refusing; it then waits with full-jitter back-off, and what could not be sent is dropped.

MAX_BACKOFF_S = 300.0
LARGEST_EXPONENT = 9
"""2^9 s is more than MAX_BACKOFF_S, and after days of failures 2^n would be too large for a float."""
REMEMBERED = 128
"""Ids of recently received groups, so that they are not sent again."""
OTHER = "other"
"""Reasons that this version does not know count as one: a coordinator that invents reasons fills no journal."""
LARGE_POOL = 4096
"""In a pool of this size nothing comes twice, so the ids are not sent."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """What one exchange did. connected is False if nothing was exchanged; sentence then says why and until when.

    sent: groups offered; accepted: of those; refused: reason -> count. sample, origins: other nodes' groups, not judged yet:
    give them to a GroupReceiver. receipts: who drew mine since the last exchange; uptake: how often ever. mine / total:
    accepted groups in the last window_s seconds.
    """

    connected: bool
    sentence: str
    code: str = ""
    sent: int = 0
    accepted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    sample: tuple[msgspec.Raw, ...] = ()
    origins: tuple[str, ...] = ()
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

    clock: monotonic seconds, for waiting. wall: Unix time, corrected by the coordinator's own time.
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
        """Time of the next exchange, on the client's clock."""
        self._clock = clock
        self._rng = rng or random.Random()
        self._transport = CoordinatorTransport(invite, identity, wall, timeout_s)
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
        """Request bodies, in total."""
        return self._transport.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Response bodies, in total."""
        return self._transport.bytes_received

    def unix_time(self) -> float:
        """Unix time on the coordinator's clock, with which groups are dated."""
        return self._transport.unix_time()

    # Called for a person: these raise

    async def join(self, name: str = "", model: str = "") -> SwarmInfo:
        """Enter the swarm; joining again is harmless. Raises Unreachable, Refused."""
        request = JoinRequest(
            key=self.identity.public_key.hex(),
            invite=self.invite.token,
            name=safe_text(name, lines=False)[:40].strip(),
            model=printable_label(model),
        )
        body = msgspec.json.encode(request)
        return parse_reply(await self._transport.signed("POST", "/v1/join", body, "application/json"), SwarmInfo)

    async def info(self) -> SwarmInfo:
        """Raises Unreachable, Refused."""
        return parse_reply(await self._transport.get("/v1/swarm"), SwarmInfo)

    async def leaderboard(self) -> Leaderboard:
        """Raises Unreachable, Refused."""
        return parse_reply(await self._transport.get("/v1/leaderboard"), Leaderboard)

    async def tasks(self) -> tuple[TaskOffer, ...]:
        """The members' custom tasks that this swarm trains on. Raises Unreachable, Refused."""
        body = await self._transport.signed("GET", "/v1/tasks", b"", "application/json")
        return parse_reply(body, TaskOffers).tasks

    async def task(self, offer: TaskOffer) -> OwnTask:
        """Fetch a task, read as strictly as a folder. None of it is stored. Raises Unreachable, Refused, BadTask."""
        path = f"/v1/tasks/{offer.hash}"
        body = await self._transport.signed("GET", path, b"", "application/json", offer.packed)
        return await asyncio.to_thread(unpack_task, offer, body)

    async def leave(self) -> None:
        """Take this node's groups out of the pool. Raises Unreachable, Refused."""
        await self._transport.signed("POST", "/v1/leave", b"", "application/json")

    async def snapshot(self, known: str) -> tuple[SnapshotNews, PoolSnapshot | None]:
        """The news of the newest snapshot of the swarm's pool, and the snapshot itself unless its id is `known`.

        Raises Unreachable, Refused (code not_found: this coordinator makes none).
        """
        raw = await self._transport.signed("GET", "/v1/snapshots/newest", b"", "application/json")
        news = parse_reply(raw, SnapshotNews)
        if news.id == known:
            return news, None
        data = await self._transport.get(f"/v1/snapshots/{news.id}")
        try:
            return news, open_snapshot(data, news, self.invite.swarm, self.invite.fingerprint)
        except WireError as error:
            raise Refused("bad_reply", str(error)) from error

    # Every round: never raises for the network

    @property
    def wait_s(self) -> float:
        """Seconds until the next exchange may be sent; 0 = now."""
        return max(0.0, self.next_at - self._clock())

    async def exchange(
        self,
        groups: Sequence[SignedGroup],
        want: int,
        reward_local: float | None = None,
        accepts: Iterable[str] = (),
    ) -> ExchangeResult:
        """Upload this round's groups (at most MAX_GROUPS; the rest is dropped) and sample up to `want` of others; of members'
        custom tasks only those whose generators are in `accepts`.

        Before `next_at` nothing is sent and the groups are dropped: stale ones are never sent later.
        """
        if self.wait_s > 0:
            return ExchangeResult(False, f"The next exchange is in {self.wait_s:.0f} s.", "waiting")
        groups = tuple(groups)[:MAX_GROUPS]
        have = tuple(self._have) if self._pool <= LARGE_POOL else ()
        try:
            accepted = tuple(accepts)
            body = encode_message(
                Upload(groups=groups, want=want, have=have, reward_local=reward_local, accepts=accepted)
            )
            path = f"/v1/rounds/{sha256_hex(body)}"
            answer = decode_message(await self._transport.signed("PUT", path, body, MEDIA_TYPE), RoundReply)
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
                self._have.append(group_id(unpack_msgpack(raw, SignedGroup).body))
            except WireError:
                continue  # the receiver counts it
        return ExchangeResult(
            connected=True,
            sentence=_sentence(answer, sent, refused),
            sent=sent,
            accepted=sum(result.accepted for result in answer.results),
            refused=refused,
            sample=tuple(answer.sample),
            origins=answer.origins,
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
    """The state of the exchange, for people: being connected does not yet mean taking part."""
    nodes = f"{answer.nodes} node{'' if answer.nodes == 1 else 's'}"
    sentence = f"Connected: {nodes}, {answer.rounds_per_s:.2f} rounds/s."
    if sent and sum(refused.values()) == sent:
        return f"{sentence} None of the last {sent} groups was taken: {', '.join(refusals_in_words(refused))}."
    return sentence
