"""The dashboard in a browser: two tabs over one node, nobody else, nothing from elsewhere, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pyte
import pytest
from tests.support.browser import Browser, browser  # noqa: F401 - a fixture
from tests.support.node_process import FAKE, environment, node

from sapo_desktop import cli
from sapo_swarm.servers import MOST

pytest.importorskip("textual_serve", reason="pip install 'sapo-desktop[serve]'")

WS = "/ws?width=100&height=30"
PROTOCOL = "Sec-WebSocket-Protocol"


class Tab:
    """What a browser tab is to the server: a websocket that takes keys and gives a terminal's bytes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._screen = pyte.Screen(100, 30)
        self._stream = pyte.ByteStream(self._screen)

    async def press(self, keys: str) -> None:
        await self._socket.send_str(json.dumps(["stdin", keys]))

    async def shows(self, wanted: Callable[[str], bool]) -> str:
        while not wanted(text := "\n".join(self._screen.display)):
            message = await self._socket.receive()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), "the server closed the tab"
            if message.type == aiohttp.WSMsgType.BINARY:
                self._stream.feed(message.data)
        return text


@dataclass
class Served:
    """A running `sapo-desktop serve`. url: without the key, address: with it."""

    process: asyncio.subprocess.Process
    address: str

    @property
    def url(self) -> str:
        return self.address.partition("/#")[0]

    @property
    def key(self) -> str:
        return self.address.partition("#key=")[2]

    def tab(self, session: aiohttp.ClientSession) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """The websocket as the page opens it."""
        return session.ws_connect(WS, protocols=("sapo-desktop", self.key))


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[Served]:
    """On a free port; killed at the end, with its dashboards, if it still lives."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sapo_desktop", "serve", "--port", "0"),
        env=environment(home),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield Served(process, (await process.stdout.readline()).decode().split()[-1])
    finally:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            dashboards = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in dashboards:  # one that still opens would find no node and start its own
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        await process.wait()


async def test_two_tabs_are_two_clients_of_one_node_and_none_outlives_the_server(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (client, _), serving(tmp_path) as served:
        async with (
            aiohttp.ClientSession(served.url) as session,
            served.tab(session) as first,
            served.tab(session) as second,
        ):
            one, two = Tab(first), Tab(second)
            await one.shows(lambda text: "Held-out pass@1" in text and "pause" in text)
            await two.shows(lambda text: "Held-out pass@1" in text and "pause" in text)
            await one.press(" ")
            await two.shows(lambda text: "Paused · space goes on" in text)
            assert (await client.status()).state == "paused"
            tabs = psutil.Process(served.process.pid).children(recursive=True)
            assert len(tabs) >= 2
            served.process.send_signal(signal.SIGTERM)
            assert await served.process.wait() == 0
        _, alive = await asyncio.to_thread(psutil.wait_procs, tabs, 30)
        assert not alive
        assert (await client.status()).state == "paused", "the node is nobody's child"


async def test_without_the_key_or_from_another_page_there_is_no_dashboard(tmp_path: Path) -> None:
    """Another user of the machine, another site's page in the same browser, a name that was rebound to 127.0.0.1."""
    async with serving(tmp_path) as served, aiohttp.ClientSession(served.url) as anybody:
        for key in ("", "guess", served.key[:-1], served.key + "x", "\u00e9"):
            assert await answer(anybody, WS, **{PROTOCOL: f"sapo-desktop, {key}"}) == 403
            assert await answer(anybody, "/", Authorization=f"Bearer {key}") == 403
        right = {PROTOCOL: f"sapo-desktop, {served.key}"}
        for path in (WS, "/download/x", "/nothing"):
            assert await answer(anybody, path) == 403
            assert await answer(anybody, path, Cookie=f"key={served.key}") == 403
        assert await answer(anybody, WS, **{PROTOCOL: served.key}) == 403
        assert await answer(anybody, WS, Origin="https://example.org", **right) == 403
        assert await answer(anybody, WS, Origin="http://127.0.0.1:1", **right) == 403
        assert await answer(anybody, WS, Origin="null", **right) == 403
        assert await answer(anybody, "/", Host="example.org:80") == 403
        assert await answer(anybody, "/", Authorization=f"Bearer {served.key}") == 200
        assert not psutil.Process(served.process.pid).children(), "nobody made it start a dashboard"


async def test_the_page_that_anybody_of_this_machine_may_load_holds_no_key(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, aiohttp.ClientSession(served.url) as anybody:
        for path in ("/", "/page.js", "/static/js/textual.js"):
            async with anybody.get(path) as page:
                assert page.status == 200
                assert served.key not in await page.text() + str(page.headers)
                assert "Set-Cookie" not in page.headers


async def answer(session: aiohttp.ClientSession, path: str, **headers: str) -> int:
    async with session.get(path, headers=headers) as reply:
        return reply.status


@pytest.mark.skipif(sys.platform != "linux", reason="limits the files of another process")
async def test_silent_connections_of_another_account_leave_room_for_who_has_the_key(tmp_path: Path) -> None:
    """More than the process may have files."""
    async with serving(tmp_path) as served:
        server = psutil.Process(served.process.pid)
        server.rlimit(psutil.RLIMIT_NOFILE, (128, 128))
        place = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        with contextlib.ExitStack() as silent:
            for _ in range(200):
                silent.enter_context(await asyncio.to_thread(socket.create_connection, place))
            async with aiohttp.ClientSession(served.url) as session, served.tab(session):
                assert await answer(session, "/") == 200
                held = [one for one in server.net_connections() if one.status == "ESTABLISHED"]
                assert len(held) <= MOST


async def test_a_browser_shows_it_and_asks_nobody_else(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """The page's own policy forbids every other host; the browser complains of nothing."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.02"), serving(tmp_path) as served:
        await browser.open(served.address)
        shown = """new Promise((done) => { const look = () =>
            document.querySelector("body.-first-byte") ? done(true) : setTimeout(look, 50); look(); })"""
        assert await browser.value(shown)
        assert await browser.value("document.activeElement.className") == "xterm-helper-textarea", "keys go there"
        assert await browser.value("document.fonts.check('16px \"Roboto Mono\"')")
        hosts = "[...new Set(performance.getEntriesByType('resource').map((e) => new URL(e.name).host))].join()"
        assert await browser.value(hosts) == served.url.removeprefix("http://")
        assert [text for text in browser.complaints if "WebGL" not in text] == []


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.run_command_line(["serve", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert f"Port {port} cannot be used" in said
    assert f"--port {port + 1}" in said
