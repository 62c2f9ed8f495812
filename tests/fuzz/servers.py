"""The HTTP surfaces of a coordinator and of a node's control API, in this process, asked one request an input.

An input is a request as it goes over the wire, or only a body. What describes the body's length is written anew, so that it
arrives whole; `Signed: x` becomes the signature of a member over what was made of the rest.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import zstandard
from aiohttp.http_exceptions import HttpProcessingError
from tests.support.openapi import openapi_document
from tests.support.simulated_nodes import sim_group

from sapo_backends.fake import FakeBackend
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator import host
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node.control_server import ControlServer
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import MEDIA_TYPE, JoinRequest, Upload, encode_message, sha256_hex

SILENT_S = 30.0
BUSY = 503
MEMBER = Identity(bytes(range(32)))
_HEAD_END = b"\r\n\r\n"
_OWN_LINES = re.compile(rb"(?im)^(content-length|transfer-encoding|connection|expect)[^\n]*\n")
_ROUND = re.compile(rb"(/v1/rounds/)[0-9a-f]{64}\b")
_SIGNED = re.compile(rb"(?m)^Signed:[^\n]*\n")
_VERBS = ("pause", "resume", "hold", "renew", "release", "evaluate", "external_on", "external_off", "stop")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opened = tuple[Callable[[], Awaitable[Connection]], str]
"""How a connection to the server is made, and the swarm that a signature is for."""


def request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    """As it goes over the wire."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode() + body


def requests() -> list[bytes]:
    """One of each kind, right but for what only a run knows."""
    body = encode_message(Upload(groups=(sim_group(MEMBER, "a" * 16, 1, 0),), want=4, reward_local=0.5))
    join = msgspec.json.encode(JoinRequest(key=MEMBER.public_key.hex(), invite="0" * 32, name="x"))
    command = b'{"for_s": 60.0, "items": 3, "holder": 7}'
    made = [request("POST", f"/v1/{verb}", command) for verb in _VERBS]
    made += [request("GET", f"/v1/{what}") for what in ("status", "config", "events?after=0&tail=5&kinds=round,state")]
    for path, methods in openapi_document()["paths"].items():
        whole = re.sub(r"\{\w+\}", sha256_hex(body), path)
        sent = join if path == "/v1/join" else body if "{id}" in path else b"{}"
        lines = ("Sapo-Proto: 1", f"Content-Type: {MEDIA_TYPE if sent is body else 'application/json'}", "Signed: x")
        made += [request(method.upper(), whole, sent, *lines) for method in methods]
    return made


class Broken(Exception):
    """A 5xx, an error in the log, or no answer."""


class Surface:
    """Called with an input; its server starts with the first one and lives as long as the process. Raises Broken."""

    def __init__(self, start: Callable[[Path], Awaitable[Opened]], template: Callable[[bytes], bytes]) -> None:
        """template: the request that a body alone goes into."""
        self._start, self._template = start, template
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errors: list[str] = []

    def __call__(self, data: bytes) -> None:
        if self._loop is None:
            self._open()
        assert self._loop is not None
        status = self._loop.run_until_complete(self._asked(data))
        if status >= 500 and status != BUSY:
            raise Broken(f"{status} {self._errors}")
        if self._errors:
            raise Broken(self._errors.pop())

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._errors.append(str(context)))
        self._folder = tempfile.TemporaryDirectory()
        self._connect, self._swarm = self._loop.run_until_complete(self._start(Path(self._folder.name)))
        heard = logging.Handler(logging.ERROR)
        heard.emit = self._heard  # type: ignore[method-assign]
        logging.getLogger().addHandler(heard)

    def _heard(self, record: logging.LogRecord) -> None:
        if not (
            record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)
        ):  # aiohttp's of bytes that are no HTTP
            self._errors.append(logging.Formatter().format(record))

    async def _asked(self, data: bytes) -> int:
        reader, writer = await self._connect()
        try:
            writer.write(self._sent(data))
            line = await asyncio.wait_for(reader.readline(), SILENT_S)
        except ConnectionError:
            return 0
        finally:
            writer.close()
        found = re.match(rb"HTTP/1\.[01] (\d{3}) ", line)
        return int(found[1]) if found else 0

    def _sent(self, data: bytes) -> bytes:
        head, mark, body = (data if _HEAD_END in data else self._template(data)).partition(_HEAD_END)
        head = _ROUND.sub(rb"\g<1>" + sha256_hex(body).encode(), _OWN_LINES.sub(b"", head + b"\r\n"))
        asked = head.split(b" ")
        if len(asked) > 1 and self._swarm:
            method, path = (word.decode("latin-1") for word in asked[:2])
            signed = MEMBER.sign_request(method, path, self._swarm, int(time.time() * 1000), body)
            lines = "".join(f"{name}: {value}\r\n" for name, value in signed.headers().items()).encode()
            head = _SIGNED.sub(lines, head)
        return head + f"Content-Length: {len(body)}\r\nConnection: close".encode() + mark + body


async def _coordinator(folder: Path) -> Opened:
    hosted = await host.launch_coordinator(
        CoordinatorSettings(
            port=0, store=f"sqlite:{folder}/swarm.sqlite", round_every_s=1e-6, round_burst=10**9, open=True, list=True
        )
    )
    connect = lambda: asyncio.open_connection("127.0.0.1", hosted.port)  # noqa: E731
    swarm = hosted.coordinator.swarm.swarm
    join = msgspec.json.encode(JoinRequest(key=MEMBER.public_key.hex()))
    signed = MEMBER.sign_request("POST", "/v1/join", swarm, int(time.time() * 1000), join).headers()
    lines = [f"{name}: {value}" for name, value in ({"Sapo-Proto": "1", "Connection": "close"} | signed).items()]
    reader, writer = await connect()
    writer.write(
        request("POST", "/v1/join", join, *lines, f"Content-Length: {len(join)}", "Content-Type: application/json")
    )
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    writer.close()
    return connect, swarm


async def _control(folder: Path) -> Opened:
    config = RunConfig(model="fake", trainer="fake", tasks=("calendar_arithmetic",), eval_every=0)
    setup = NodeSetup(config, "test", folder / "run", lambda progress: FakeBackend(), ResourceLimits)  # type: ignore[arg-type]
    await ControlServer(Node(setup), folder / "node.sock").__aenter__()
    return lambda: asyncio.open_unix_connection(str(folder / "node.sock")), ""


def _round(body: bytes) -> bytes:
    if not body.startswith(zstandard.FRAME_HEADER):
        body = zstandard.ZstdCompressor(level=1).compress(body)
    return request(
        "PUT", f"/v1/rounds/{sha256_hex(body)}", body, "Sapo-Proto: 1", f"Content-Type: {MEDIA_TYPE}", "Signed: x"
    )


coordinator = Surface(_coordinator, _round)
control = Surface(_control, lambda body: request("POST", "/v1/pause", body))
