"""What is no HTTP fills no log, whichever of the local servers it is sent to: real sockets, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeBackend
from sapo_desktop.services import browser
from sapo_desktop.services.models.endpoint import ChatEndpoint, ChatService
from sapo_swarm.config import RunConfig
from sapo_swarm.node.control_server import ControlServer
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

MALFORMED = [
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/one\r\n\r\n",
    b"GET / HTTP/1.1\r\nno header\r\n\r\n",
]
Serving = Callable[[Path], AbstractAsyncContextManager[int]]


def node(folder: Path) -> Node:
    config = RunConfig(model="fake", trainer="fake")
    return Node(
        NodeSetup(config, "test", folder / "run", lambda progress: FakeBackend().load(LoadRequest("fake"), progress))
    )


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[int]:
    place = folder / "s" / "node.sock"
    async with ControlServer(node(folder), place):
        yield json.loads(await asyncio.to_thread(place.read_bytes))["port"]


@asynccontextmanager
async def model(folder: Path) -> AsyncIterator[int]:
    async with ChatEndpoint(ChatService(EngineThread()), "model", "token") as endpoint:
        yield urlsplit(endpoint.url).port or 0


@asynccontextmanager
async def dashboard(folder: Path) -> AsyncIterator[int]:
    pytest.importorskip("textual_serve", reason="pip install 'sapo-desktop[serve]'")
    bound, told = browser.open_dashboard_socket(0), asyncio.Event()
    serving = asyncio.create_task(browser.serve_dashboard(bound, lambda _: told.set()))
    await told.wait()
    yield bound.getsockname()[1]
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("serving", [control, model, dashboard])
async def test_malformed_requests_are_answered_with_400_and_leave_one_line(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SAPO_CONTROL", "tcp")
    async with serving(tmp_path) as port:
        for malformed in MALFORMED * 3:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(malformed)
            assert (await reader.readline()).split()[1] == b"400"
            writer.close()
    assert len(caplog.records) <= 1
