"""One request to a coordinator: signed, pinned, bounded, with its clock; what goes wrong is one of two errors.

Error tree::

    CoordinatorError       base; str() is a sentence for people
    ├── Unreachable        no answer; carries why
    └── Refused            an answer that says no; `code` is stable
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp.connector import Connection

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import H_PROTO, H_TIME, MAX_BODY, Problem, WireError, unpack_json
from sapo_swarm.types import PROTOCOL_VERSION, UNREADABLE

TIMEOUT_S = 10.0
INTERIM_ANSWERS = 8
KEEPALIVE_S = 60.0
"""Longer than a round, shorter than the coordinator's patience: one handshake for many rounds."""


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


class Response(aiohttp.ClientResponse):
    """An answer before which only so many interim ones (1xx) may come: without a limit they keep a client busy for ever."""

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


def open_session(
    fingerprint: str, timeout_s: float, headers: Mapping[str, str] = {}, url: str | None = None
) -> aiohttp.ClientSession:
    """Call on the event loop. A session without cookies and compression. fingerprint: SHA-256 in hex of the certificate that
    alone is trusted; "": any that a known authority vouches for. url: begins every path."""
    pin: aiohttp.Fingerprint | bool = aiohttp.Fingerprint(bytes.fromhex(fingerprint)) if fingerprint else True
    return aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=2, ssl=pin, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(5.0, timeout_s)),
        response_class=Response,
        auto_decompress=False,
        headers={"User-Agent": "sapo-desktop", "Accept-Encoding": "identity", **headers},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class Transport:
    """Requests of one node to one coordinator; open() comes first. bytes_sent, bytes_received: bodies, ever.

    wall: Unix time; the coordinator's own time, in its answers to signed requests, corrects it.
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
        fingerprint, protocol = self._invite.fingerprint, {H_PROTO: str(PROTOCOL_VERSION)}
        self._session = open_session(fingerprint, self._timeout_s, protocol, self._invite.url)

    def unix_time(self) -> float:
        """Seconds since the epoch on the coordinator's clock, as far as it is known: this machine's may be wrong."""
        return self._wall() + self._offset

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str) -> bytes:
        """The body of a 2xx answer to an unsigned request. Raises Unreachable, Refused."""
        return await self._request("GET", path)

    async def signed(self, method: str, path: str, body: bytes, media: str, limit: int = MAX_BODY) -> bytes:
        """The body of a 2xx answer, of at most `limit` bytes. A request that met the wrong clock or a broken connection goes out
        once more.

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
        return checked(response.status, bytes(content))

    def _correct_clock(self, text: str) -> None:
        if text.isascii() and text.isdigit() and len(text) <= 16:
            self._offset = int(text) / 1000 - self._wall()


def why_not(error: Exception) -> str:
    """What keeps a request from its answer, in words."""
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


def checked(status: int, body: bytes) -> bytes:
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


def parsed(body: bytes, kind: type[_T]) -> _T:
    """The JSON body of an answer. Raises Refused."""
    try:
        return unpack_json(body, kind)
    except WireError as error:
        raise Refused("bad_reply", "The coordinator's answer does not parse: is it another version?") from error
