"""The real dashboard in headless Chromium: what a person does with a tab, and what happens when something dies under it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.functional.app.test_serve import serving
from tests.support.browser import Browser, browser  # noqa: F401 - a fixture
from tests.support.node_process import FAKE, node

pytest.importorskip("textual_serve", reason="pip install 'sapo-desktop[serve]'")

SHOWN = '(document.body?.classList.contains("-first-byte") ?? false)'
SENTENCE = 'document.querySelector(".lost p")?.textContent ?? ""'


def keep(picture: bytes, name: str) -> None:
    """For people who want to look: SAPO_PICTURES names a folder."""
    if folder := os.environ.get("SAPO_PICTURES"):
        (Path(folder) / f"{name}.png").write_bytes(picture)


async def test_keys_sizes_and_two_tabs(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Keys steer the node, the layout follows the window, a second tab is a second client, `q` ends one of them."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (client, _), serving(tmp_path) as served:
        await browser.open(served.address)
        await browser.shows(lambda text: "Held-out pass@1" in text and "local" in text)
        whole = await browser.picture()
        keep(whole, "start")
        for key, wanted in (
            ("2", "This node trains alone"),
            ("4", "My models"),
            ("5", "opened: "),
            ("?", "Keys"),
        ):
            await browser.press(key)
            await browser.shows(lambda text, wanted=wanted: wanted in text)  # type: ignore[misc]
            keep(await browser.picture(), f"key-{ord(key)}")
        await browser.press("Escape")
        await browser.shows(lambda text: "Keys" not in text)  # an escape with a key behind it is another key
        await browser.press("1")
        await browser.shows(lambda text: "Held-out pass@1" in text)
        before = browser.size
        await browser.resize(800, 560)
        await browser.shows(lambda text: browser.size != before and "Reward" in text)
        assert browser.size[0] < before[0]
        keep(await browser.picture(), "small")
        second = await browser.another()
        await second.open(served.address)
        await second.shows(lambda text: "Held-out pass@1" in text)
        await browser.press(" ")
        await second.shows(lambda text: "Paused" in text)
        assert (await client.status()).state == "paused"
        keep(await second.picture(), "second")
        await second.press("q")
        await second.shows(lambda text: "background" in text)
        keep(await second.picture(), "quit")
        await second.press("b")
        await second.until('document.body.classList.contains("-closed") && !document.body.classList.contains("-lost")')
        keep(await second.picture(), "closed")
        assert await browser.value(SHOWN), "the first tab goes on"
        assert await browser.picture() != whole
        assert [text for text in browser.complaints if "WebGL" not in text] == []


async def test_a_tab_comes_back_by_itself(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Its dashboard was killed: a new one opens. The server ended: one sentence, and it asks again."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.02"), serving(tmp_path) as served:
        await browser.open(served.address)
        await browser.shows(lambda text: "Held-out pass@1" in text)
        await browser.until("performance.now() > 5000")
        await browser.value("window.before = true")
        first = psutil.Process(served.process.pid).children(recursive=True)
        for process in first:
            process.kill()
        await browser.until(f"window.before === undefined && {SHOWN}")
        await browser.shows(lambda text: "Held-out pass@1" in text)
        assert not set(psutil.Process(served.process.pid).children(recursive=True)) & set(first)
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), 30) == 0
        await browser.until(f"({SENTENCE}).includes('connection is lost')")
        keep(await browser.picture(), "lost")


async def test_what_listens_on_another_port_is_not_shown_the_key(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """A browser takes every port of this machine for the same site. Without the key a tab says what it lacks."""
    asked: list[bytes] = []

    async def strange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nstrange")
        except asyncio.IncompleteReadError:  # a browser opens connections ahead of need
            pass
        finally:
            writer.close()

    async with (
        node(tmp_path, *FAKE, "--model", "fake:0.02"),
        serving(tmp_path) as served,
        await asyncio.start_server(strange, "127.0.0.1", 0) as other,
    ):
        await browser.open(served.address)
        await browser.shows(lambda text: "Held-out pass@1" in text)
        assert await browser.value("location.href") == f"{served.url}/"
        second = await browser.another()
        await second.open(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/")
        await second.until("document.body?.textContent === 'strange'")
        assert served.key.encode() not in b"".join(asked)
        await second.open(f"{served.url}/")
        await second.until(f"({SENTENCE}).includes('the key in it is missing or old')")
        await second.open(served.address)
        await second.shows(lambda text: "Held-out pass@1" in text)
        await second.value("window.before = true; location.reload()")
        await second.until(f"window.before === undefined && {SHOWN}")
        assert [text for text in browser.complaints if "WebGL" not in text] == []
