"""What the feed says of a node that goes, and what it tells again of a history that broke off."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sapo_desktop.dashboard import feed as feeds
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.state import DashboardState, NodeLink, ReplayRewound, apply_event
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.events import Event, LogLine
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.control_api import NodeNotAnswering, NodeNotRunning, NodeStatus, NodeUnreadable

REMARK, REASON = "Could not initialize NNPACK", "No space is left"


class BrokenOff:
    """A node whose history holds something that this version cannot read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __aenter__(self) -> BrokenOff:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return None

    async def status(self) -> NodeStatus:
        silo = ("silo", "fake", "fake", "cpu", 3, 0, None, 0.0, -1.0, 0, 0.0, "0.0.9")
        return NodeStatus("paused", "Paused", "person", 0.0, 7, "r", str(self.folder), *silo)  # type: ignore[arg-type]

    async def events(self, **_wanted: object) -> AsyncIterator[Event]:
        yield LogLine(time=1.0, level="info", text="once", seq=1)
        raise NodeUnreadable


async def test_a_history_that_breaks_off_is_not_told_on_top_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ControlClient", lambda _socket: BrokenOff(tmp_path))
    monkeypatch.setattr(feeds, "_BACKOFF_S", (0.0,))
    state, links = DashboardState(), 0
    async with asyncio.timeout(30):
        async for told in ControlFeed(tmp_path / "node.sock").events():
            state = DashboardState() if isinstance(told, ReplayRewound) else apply_event(state, told)
            links += isinstance(told, NodeLink) and not told.connected
            if links == 3:
                break
    assert [line.text for line in state.log].count("once") == 1


async def test_a_node_that_lives_keeps_its_own_sentence_whatever_a_library_remarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    home.prepare()
    (home.logs / "node.stderr").write_text(f"{REMARK}\n")

    def silent(_socket: Path) -> None:
        raise NodeNotAnswering(os.getpid(), 9.0)

    monkeypatch.setattr(feeds, "ControlClient", silent)
    feed = ControlFeed(home.socket, lambda pid, since: supervisor.last_words(home, pid, since))
    for feed._pid in (0, os.getpid()):
        async for told in feed.events():
            assert isinstance(told, NodeLink)
            assert REMARK not in told.sentence
            break


async def test_a_node_is_said_to_be_gone_with_its_words_also_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_socket: Path) -> None:
        raise NodeNotRunning

    now, asked = time.time(), []
    monkeypatch.setattr(feeds, "ControlClient", silent)
    feed = ControlFeed(tmp_path / "node.sock", lambda _pid, since: asked.append(since) or REASON)  # type: ignore[func-returns-value]
    feed._pid, feed._since = 7, steady_seconds()
    monkeypatch.setattr(time, "time", lambda: now - 7200)
    async for told in feed.events():
        assert isinstance(told, NodeLink)
        assert told.sentence == f"The node ended: {REASON}"
        break
    assert asked == [pytest.approx(now - 7200, abs=60)]


def test_only_what_a_node_wrote_after_it_answered_says_why_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    home.prepare()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True)
    errors, answered = home.logs / "node.stderr", time.time()
    errors.write_text(f"{REMARK}\n")
    os.utime(errors, (answered - 60, answered - 60))
    assert supervisor.last_words(home, int(gone.stdout), answered) == ""
    errors.write_text(f"{REMARK}\nsapo-desktop: {REASON}\n")
    os.utime(errors, (answered + 60, answered + 60))
    assert supervisor.last_words(home, int(gone.stdout), answered) == REASON
    assert supervisor.last_words(home, os.getpid(), answered) == ""
