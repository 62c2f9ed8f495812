"""A node's side of the coordinator: join once, then one request a round that uploads and samples.

The network is never on the critical path: `exchange` gives a typed result and raises nothing for a coordinator that
is away, slow or refusing; it then waits with full-jitter back-off, and what could not be sent is dropped.

Error tree (join and info only)::

    CoordinatorError       base; str() is a sentence for people
    ├── Unreachable        no answer; carries why
    └── Refused            an answer that says no; `code` is stable
"""

from __future__ import annotations

import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import aiohttp
import msgspec

from sapo_swarm.identity import Identity
from sapo_swarm.invite import Invite
from sapo_swarm.safe_text import safe_text
from sapo_swarm.types import PROTOCOL_VERSION
from sapo_swarm.wire import (
    H_PROTO,
    H_TIME,
    MAX_BODY,
    MAX_GROUPS,
    MEDIA_TYPE,
    JoinRequest,
    Leaderboard,
    Problem,
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
    unpack_json,
)

TIMEOUT_S = 10.0
MAX_BACKOFF_S = 300.0
KEEPALIVE_S = 60.0
"""Longer than a round, shorter than the coordinator's patience: one handshake for many rounds."""
REMEMBERED = 128
"""Ids of groups received lately, so that they are not sent again."""
LARGE_POOL = 4096
"""In a pool so large nothing comes twice; the ids stay at home."""


class CoordinatorError(Exception):
    """The coordinator did not do what was asked; the message is a sentence."""


class Unreachable(CoordinatorError):
    """No answer."""


class Refused(CoordinatorError):
    """The coordinator said no. retry_after_s: when to come again, if it said."""

    def __init__(self, code: str, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """What one exchange did. connected is False when nothing was exchanged; sentence then says why and until when.

    sent: groups offered; accepted: of those; refused: reason -> count. sample: groups of others, unjudged: give them
    to a Receiver. receipts: who drew mine since the last exchange; uptake: times ever. mine / total: accepted groups
    in the last window_s seconds. bytes on the wire are bodies only. seconds: duration of the request.
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
    next_in_s: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Swarm share in [0, 1]: my accepted groups / all accepted groups in the window."""
        return self.mine / self.total if self.total else 0.0


@dataclass(slots=True)
class _Reply:
    status: int
    body: bytes


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
        self.bytes_sent = 0
        self.bytes_received = 0
        self.failures = 0
        self.next_at = 0.0
        """When the next exchange will go out, on the client's clock."""
        self._clock, self._wall = clock, wall
        self._rng = rng or random.Random()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(5.0, timeout_s))
        self._offset = 0.0
        self._have: deque[bytes] = deque(maxlen=REMEMBERED)
        self._pool = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> NodeClient:
        pin: aiohttp.Fingerprint | bool = True
        if self.invite.fingerprint:
            pin = aiohttp.Fingerprint(bytes.fromhex(self.invite.fingerprint))
        connector = aiohttp.TCPConnector(limit=2, ssl=pin, keepalive_timeout=KEEPALIVE_S)
        self._session = aiohttp.ClientSession(
            base_url=self.invite.url,
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            headers={"User-Agent": "sapo-desktop", H_PROTO: str(PROTOCOL_VERSION), "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Asked by a person: raises

    async def join(self, name: str = "", model: str = "") -> SwarmInfo:
        """Enter the swarm; joining again is harmless. Raises Unreachable, Refused."""
        request = JoinRequest(
            key=self.identity.public_key.hex(),
            invite=self.invite.token,
            name=safe_text(name, lines=False)[:40],
            model=label(model),
        )
        body = msgspec.json.encode(request)
        return _json(await self._signed("POST", "/v1/join", body, "application/json"), SwarmInfo)

    async def info(self) -> SwarmInfo:
        """Raises Unreachable, Refused."""
        return _json(_checked(await self._request("GET", "/v1/swarm")), SwarmInfo)

    async def leaderboard(self) -> Leaderboard:
        """Raises Unreachable, Refused."""
        return _json(_checked(await self._request("GET", "/v1/leaderboard")), Leaderboard)

    async def leave(self) -> None:
        """Take this node's groups out of the pool. Raises Unreachable, Refused."""
        await self._signed("POST", "/v1/leave", b"", "application/json")

    # Every round: never raises for the network

    @property
    def wait_s(self) -> float:
        """Seconds until the next exchange would go out; 0 = now."""
        return max(0.0, self.next_at - self._clock())

    async def exchange(
        self, groups: Sequence[SignedGroup], want: int, reward_local: float | None = None
    ) -> ExchangeResult:
        """Upload this round's groups (at most MAX_GROUPS; the rest is dropped) and draw up to `want` of others.

        Before `next_at` nothing is sent and the groups are dropped: stale ones are never flushed later.
        """
        if self.wait_s > 0:
            return ExchangeResult(False, f"The next exchange is in {self.wait_s:.0f} s.", "waiting")
        groups = tuple(groups)[:MAX_GROUPS]
        started = self._clock()
        have = tuple(self._have) if self._pool <= LARGE_POOL else ()
        try:
            body = encode(Upload(groups=groups, want=want, have=have, reward_local=reward_local))
            reply = await self._signed("PUT", f"/v1/rounds/{digest(body)}", body, MEDIA_TYPE)
            answer = decode(reply, RoundReply)
        except (CoordinatorError, WireError) as error:
            return self._failed(error, len(groups))
        result = self._done(answer, len(groups), len(body), len(reply), self._clock() - started)
        self.failures, self._pool = 0, answer.pool
        self.next_at = self._clock() + answer.next_in_s
        return result

    def _done(self, answer: RoundReply, sent: int, up: int, down: int, seconds: float) -> ExchangeResult:
        refused: dict[str, int] = {}
        for result in answer.results:
            if not result.accepted:
                refused[result.reason] = refused.get(result.reason, 0) + 1
        for raw in answer.sample:
            try:
                self._have.append(group_id(unpack(raw, SignedGroup).body))
            except WireError:
                continue  # the receiver counts it
        return ExchangeResult(
            connected=True,
            sentence=f"Connected: {answer.nodes} node{'' if answer.nodes == 1 else 's'}, {answer.rounds_per_s:.1f} rounds/s.",
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
            next_in_s=answer.next_in_s,
            bytes_sent=up,
            bytes_received=down,
            seconds=seconds,
        )

    def _failed(self, error: Exception, sent: int) -> ExchangeResult:
        """Full jitter: random(0, min(300, 2^n)), or what the coordinator asked for."""
        self.failures += 1
        wait = self._rng.uniform(0.0, min(MAX_BACKOFF_S, 2.0**self.failures))
        code = "unreachable"
        if isinstance(error, Refused):
            code = error.code
            wait = max(wait, min(error.retry_after_s or 0.0, MAX_BACKOFF_S))
        elif isinstance(error, WireError):
            code = "bad_reply"
        self.next_at = self._clock() + wait
        return ExchangeResult(False, f"{error} Next try in {wait:.0f} s; training goes on alone.", code, sent=sent)

    # One request

    async def _signed(self, method: str, path: str, body: bytes, media: str) -> bytes:
        """The body of a 2xx answer. A request that met the wrong clock or a broken connection goes out once more."""
        for attempt in (1, 2):
            ts = int((self._wall() + self._offset) * 1000)
            headers = self.identity.sign_request(method, path, self.invite.swarm, ts, body).headers()
            headers["Content-Type"] = media
            try:
                return _checked(await self._request(method, path, body, headers))
            except Refused as refused:
                if refused.code != "clock_skew" or attempt == 2:
                    raise
            except Unreachable as error:
                if attempt == 2 or not isinstance(error.__cause__, aiohttp.ServerDisconnectedError):
                    raise
        raise AssertionError("two attempts")

    async def _request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> _Reply:
        if self._session is None:
            raise Unreachable("The client is closed.")
        self.bytes_sent += len(body)
        try:
            async with self._session.request(
                method, path, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                self._correct_clock(response.headers.get(H_TIME, ""))
                content = await response.content.read(MAX_BODY + 1)
                while len(content) <= MAX_BODY and (more := await response.content.read(MAX_BODY + 1 - len(content))):
                    content += more
        except aiohttp.ServerFingerprintMismatch as error:
            raise Unreachable(
                f"{self.invite.host} shows another certificate than the invite's: somebody is in between, or the "
                "swarm was founded anew. Ask the host for a new invite."
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"{self.invite.host}:{self.invite.port} does not answer in time.") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            reason = safe_text(str(error), 120, lines=False) or type(error).__name__
            raise Unreachable(f"{self.invite.host}:{self.invite.port} cannot be reached ({reason}).") from error
        self.bytes_received += len(content)
        if len(content) > MAX_BODY:
            raise Refused("bad_reply", "The coordinator's answer is longer than the protocol allows.")
        return _Reply(response.status, content)

    def _correct_clock(self, text: str) -> None:
        if text.isascii() and text.isdigit() and len(text) <= 16:
            self._offset = int(text) / 1000 - self._wall()


def _checked(reply: _Reply) -> bytes:
    """The body of a 2xx answer. Raises Refused."""
    if 200 <= reply.status < 300:
        return reply.body
    try:
        problem = msgspec.json.decode(reply.body, type=Problem)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Refused("bad_reply", f"The coordinator answered {reply.status} without a reason.") from None
    retry = problem.retry_after_s
    raise Refused(
        safe_text(problem.code, 40, lines=False),
        safe_text(problem.detail or problem.title, 300, lines=False),
        retry if retry is not None and 0 <= retry < 86_400 else None,
    )


_T = TypeVar("_T")


def _json(body: bytes, kind: type[_T]) -> _T:
    try:
        return unpack_json(body, kind)
    except WireError as error:
        raise Refused("bad_reply", "The coordinator's answer does not parse: is it another version?") from error
