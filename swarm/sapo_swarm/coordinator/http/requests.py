"""Reading and authenticating a request: who sent it, is it whole, is it new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import hdrs, web

from sapo_swarm.coordinator.domain.limits import UNKNOWN, prefix_of
from sapo_swarm.coordinator.http.problems import Refusal
from sapo_swarm.protocol.identity import Signed, request_text, verify
from sapo_swarm.protocol.wire import H_NODE, H_NONCE, H_PROTO, H_SIGNATURE, H_TIME, MAX_BODY, Nonce, WireError
from sapo_swarm.types import PROTOCOL_VERSION, NodeId

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
    """An Expect header that is no text is refused: aiohttp quotes it in its answer, which then cannot be written."""
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
    """What the head says of the body. Raises Refusal: unsupported_media, too_large."""
    if "Content-Encoding" in request.headers:
        raise Refusal("unsupported_media", "Send the body without Content-Encoding: it is compressed already.")
    if request.content_length is not None and request.content_length > limit:
        raise Refusal("too_large", f"The body has {request.content_length} bytes; the limit is {limit}.")


async def read_body(request: web.Request, deadline_s: float, limit: int = MAX_BODY) -> bytes:
    """The body as it came, never decompressed. Raises Refusal: unsupported_media, too_large, timeout."""
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


def read_signature(request: web.Request) -> Signed:
    """The signature headers. Raises Refusal("bad_signature") when one is missing or malformed."""
    headers = request.headers
    try:
        parts = msgspec.convert({"node": headers[H_NODE], "nonce": headers[H_NONCE]}, _Headers)
        text = headers[H_TIME]
        if len(text) > 16 or not (text.isascii() and text.isdigit()) or len(headers[H_SIGNATURE]) != 128:
            raise ValueError
        return Signed(parts.node, int(text), parts.nonce, bytes.fromhex(headers[H_SIGNATURE]))
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        names = ", ".join((H_NODE, H_TIME, H_NONCE, H_SIGNATURE))
        raise Refusal("bad_signature", f"The request must carry well-formed {names}.") from error


def check_signature(
    request: web.Request, signed: Signed, key: bytes, swarm: str, body: bytes | str, now: float, skew_s: float
) -> None:
    """Raises Refusal: clock_skew, bad_signature. The nonce is the store's business."""
    if abs(signed.ts / 1000 - now) > skew_s:
        raise Refusal(
            "clock_skew",
            f"The request is dated {signed.ts / 1000 - now:+.0f} s from this clock; {skew_s:.0f} s are allowed.",
        )
    text = request_text(request.method, request.rel_url.raw_path, swarm, signed.ts, signed.nonce, body)
    if not verify(key, signed.signature, text):
        raise Refusal("bad_signature", "The signature does not match the request, the swarm or the node's key.")


def parsed(parse: Callable[[bytes, type[T]], T], body: bytes, kind: type[T]) -> T:
    """The struct in a body. parse: of its encoding. Raises Refusal."""
    try:
        return parse(body, kind)
    except WireError as error:
        raise Refusal(error.code, str(error)) from error


def json_reply(message: msgspec.Struct) -> web.Response:
    """The struct as JSON."""
    return web.Response(body=msgspec.json.encode(message), content_type="application/json")
