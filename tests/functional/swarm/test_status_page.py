"""The status page in a real headless browser: live, safe with hostile names, nothing blocked by its own policy."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.support.browser import Browser, browser  # noqa: F401 - a fixture
from tests.support.simulated_nodes import sim_group

from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.web import CSP, OF_NETWORK, chart_points
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import GroupBody, refusals_in_words

HOSTILE = "<script>document.title='owned'</script>"


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    """A coordinator with one node of a hostile name."""
    settings = {
        "port": 0,
        "store": f"sqlite:{tmp_path}/s.sqlite",
        "name": "kitchen <b>table</b>",
        "round_every_s": 0.01,
    }
    running = await launch_coordinator(msgspec.convert(settings, CoordinatorSettings))
    running.coordinator.stats.ttl_s = 0.0
    node = Identity.generate()
    async with NodeClient(running.invite, node) as client:
        await client.join(HOSTILE, "<img src=x onerror=alert(1)>")
        groups = [sim_group(node, running.invite.swarm, 1, slot) for slot in range(3)]
        assert (await client.exchange(groups, 4, reward_local=0.25)).accepted == 3
    yield running
    await running.stop()


async def test_the_page_goes_live_and_shows_hostile_names_as_text(
    hosted: RunningCoordinator,
    browser: Browser,  # noqa: F811
) -> None:
    """The event stream repaints the tables; no script of a name runs; the browser complains of nothing."""
    await browser.open(hosted.url + "/")
    went_live = """new Promise((done) => { const look = () =>
        document.querySelector("#live.on") ? done(true) : setTimeout(look, 50); look(); })"""
    async with asyncio.timeout(100):
        assert await browser.value(went_live)
    assert await browser.value("document.querySelector('#leaders tbody bdi').textContent") == HOSTILE
    assert await browser.value("document.querySelector('h1').textContent") == "kitchen <b>table</b>"
    assert await browser.value("document.querySelector('#groups_hour').textContent") == "3"
    assert await browser.value("document.querySelector('#reward').textContent") == "0.250"
    assert await browser.value("document.querySelectorAll('body script, img').length") == 0
    assert "owned" not in await browser.value("document.title")
    assert browser.complaints == []


async def test_the_page_says_reasons_and_uptake_in_the_words_of_screen_2(hosted: RunningCoordinator) -> None:
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
        late = sim_group(client.identity, hosted.invite.swarm, 2, 0)
        body = msgspec.structs.replace(msgspec.msgpack.decode(late.body, type=GroupBody), ts=0)
        result = await client.exchange([client.identity.sign_group(hosted.invite.swarm, body)], 0)
    async with aiohttp.ClientSession(hosted.url) as session, session.get("/") as response:
        html = await response.text()
    assert result.refused == {"stale": 1}
    assert f"Sent, not taken: {refusals_in_words(result.refused)[0]}</p>" in html
    assert ">Uptake</th>" in html
    assert "drew" not in html


async def test_the_policy_forbids_what_the_page_does_not_need(hosted: RunningCoordinator) -> None:
    """No inline script or style, no frame, no foreign source; the markup holds none."""
    async with aiohttp.ClientSession(hosted.url) as session, session.get("/") as response:
        assert response.headers["Content-Security-Policy"] == CSP
        html = await response.text()
    assert "unsafe" not in CSP
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=\"", html)
    assert html.count("<script") == 1
    assert "&lt;script&gt;" in html


async def test_only_so_many_may_watch_live(hosted: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is told to come again; a stream does not count as a request in flight."""
    monkeypatch.setattr("sapo_swarm.coordinator.web.MAX_WATCHERS", 1)
    async with aiohttp.ClientSession(hosted.url) as session, session.get("/events") as stream:
        first = await stream.content.readline()
        assert first.startswith(b"data: {")
        assert hosted.coordinator.metrics.in_flight == 0
        async with session.get("/events") as refused:
            assert refused.status == 503
            assert "Retry-After" in refused.headers


async def test_head_on_the_event_stream_is_405(hosted: RunningCoordinator) -> None:
    """It was answered with a stream of bodies, and held a place."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
    writer.write(b"HEAD /events HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"405"
    writer.close()


async def test_one_network_holds_eight_of_the_places_to_watch(tmp_path: Path) -> None:
    """Whoever opens as many streams as there are keeps nobody else from watching live."""
    made = CoordinatorSettings(port=0, store=f"sqlite:{tmp_path}/s.sqlite", trust_proxy=True)
    hosted = await launch_coordinator(made)
    async with aiohttp.ClientSession(hosted.url) as session, contextlib.AsyncExitStack() as open_streams:

        async def status(address: str) -> int:
            request = session.get("/events", headers={"X-Forwarded-For": address})
            return (await open_streams.enter_async_context(request)).status

        first = [await status(f"192.0.2.{number}") for number in range(OF_NETWORK + 1)]
        assert first == [200] * OF_NETWORK + [503]
        assert await status("198.51.100.1") == 200
    await hosted.stop()


def test_chart_points_skip_gaps_and_scale_to_the_peak() -> None:
    """Empty and flat series too."""
    assert chart_points((0, 5, None, 10), 300, 100) == "0.0,100.0 100.0,50.0 300.0,0.0"
    assert chart_points((), 300, 100) == ""
    assert chart_points((0, 0), 300, 100) == "0.0,100.0 300.0,100.0"
