"""Headless Chromium, spoken to by its DevTools protocol: pages, keys, sizes, pictures, and the terminal that a page shows."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyte
import pytest

WAIT_S = 60
KEYS = {"Escape": 27, "Enter": 13, "F1": 112, "F2": 113}
"""Keys that write no character, with their codes."""


class Browser:
    """A page. complaints: what it logged. screen(): the text of its terminal, from the bytes that its socket received."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, pages: Callable[[], Any]) -> None:
        self.complaints: list[str] = []
        self._socket, self._pages = socket, pages
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        self._terminal(80, 24)
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = len(self._answers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await self._answers[number]

    async def value(self, script: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    async def open(self, url: str) -> None:
        """Go there, and follow what the page logs and what its terminal shows."""
        for domain in ("Log", "Runtime", "Page", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def press(self, key: str) -> None:
        """A key as from a keyboard: a character, or one of KEYS."""
        text = {} if key in KEYS else {"text": key}
        code = KEYS.get(key) or ord(key.upper())
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    async def resize(self, width: int, height: int) -> None:
        """The window's size in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self) -> bytes:
        """The page as a PNG file."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as the page told the server."""
        return self._screen.columns, self._screen.lines

    def screen(self) -> str:
        return "\n".join(self._screen.display)

    async def shows(self, wanted: Callable[[str], bool]) -> str:
        """Wait until the terminal is as wanted."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not wanted(self.screen()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"The page shows something else:\n{self.screen()}") from None
        return self.screen()

    async def until(self, condition: str) -> None:
        """Wait until the JavaScript condition holds. The page may be another one by then."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if await self.value(condition):
                        return
                    await asyncio.sleep(0.05)  # a page that was left tells nothing more
        except TimeoutError:
            seen = await self.value("document.body.className + ': ' + document.body.innerText")
            raise AssertionError(f"Not so on the page: {condition}\n{seen}\n{self.complaints}") from None

    async def another(self) -> Browser:
        """A new tab of the same browser."""
        made: Browser = await self._pages()
        return made

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._socket.close()

    def _terminal(self, columns: int, rows: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                told = json.loads(message.data)
                if "id" in told:
                    self._answers[told["id"]].set_result(told.get("result", {}))
                else:
                    self._happened(told["method"], told["params"])
        except Exception as error:  # whoever waits for an answer hears of it
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_exception(error)
            raise

    def _happened(self, method: str, told: dict[str, Any]) -> None:
        if method in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(told))
        elif method == "Network.webSocketCreated":
            self._terminal(*map(int, re.findall(r"(?:width|height)=(\d+)", told["url"])))
        elif method == "Network.webSocketFrameSent":
            kind, *values = json.loads(told["response"]["payloadData"])
            if kind == "resize":
                self._screen.resize(values[0]["height"], values[0]["width"])
        elif method == "Network.webSocketFrameReceived" and told["response"]["opcode"] == 2:
            self._stream.feed(base64.b64decode(told["response"]["payloadData"]))
        self._changed.set()


def program() -> str:
    """Chromium. Without one: a failure under CI, else a skip with a sentence."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sentence = "chromium is not installed. Fix: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return found


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """The first page of a browser of its own."""
    async with chromium(tmp_path / "profile") as page:
        yield page


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Browser]:
    """Chromium on a free port; ended at the end."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1200,1000")
    process = await asyncio.create_subprocess_exec(
        program(),
        f"--user-data-dir={profile}",
        *flags,
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    port = ""
    while not port:
        line = (await process.stderr.readline()).decode()
        assert line, "Chromium ended at once"
        port = "".join(re.findall(r"ws://127\.0\.0\.1:(\d+)/", line))
    drain = asyncio.create_task(process.stderr.read())
    opened: list[Browser] = []
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def page() -> Browser:
            async with session.put("/json/new?about:blank") as response:
                address = (await response.json())["webSocketDebuggerUrl"]
            opened.append(Browser(await session.ws_connect(address, max_msg_size=0), page))
            return opened[-1]

        yield await page()
        for one in opened:
            await one.close()
    process.terminate()
    await process.wait()
    await drain
