"""A node that is started from the dashboard: once, and known of whatever becomes of whoever started it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from tests.support.node_process import CALM
from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, settled
from textual import events

from sapo_desktop.commands.nodes import dashboard
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.state import NodeLink
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.nodes import children as background
from sapo_desktop.services.nodes import supervisor

GONE = NodeLink(False, "The node is gone", SILO[-1].time, ended=True)


@pytest.mark.parametrize("steps", [0, 1, 2, None])
async def test_a_start_cancelled_at_any_moment_leaves_no_process_that_starting_does_not_name(
    home: Home, steps: int | None
) -> None:
    """steps: of the event loop; None: as soon as there is a process."""
    before = set(background._children)
    starting = asyncio.create_task(supervisor.launch_node(home, []))
    for step in count():
        if step == steps or set(background._children) - before:
            break
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    children = set(background._children) - before
    try:
        assert [supervisor.starting_pid(home)] == ([child.pid for child in children] or [None])
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_space_pressed_twice_on_a_node_that_is_gone_starts_one_node_and_the_dashboard_stays() -> None:
    starts, answers = 0, asyncio.Event()

    async def start(given: FirstRunAnswers | None) -> None:
        nonlocal starts
        starts += 1
        if starts > 1:  # the first one found the node that went away since
            await answers.wait()

    app = SapoDashboard(ScriptedFeed([*SILO, GONE]), start=start)
    async with app.run_test(size=NARROW, notifications=True) as pilot:
        await settled(pilot)
        await pilot.press("space", "space")
        await pilot.pause()
        assert starts == 2
        assert [toast.message for toast in app._notifications] == ["Starting the node", "The node is starting"]
        answers.set()
        await settled(pilot)
        await pilot.press("space")
        await settled(pilot)
        assert starts == 3, "one that went away again is started again"
        assert app.is_running


async def test_a_node_that_is_being_started_is_waited_for_and_no_second_one_is_started(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.settings.write_text('[run]\ntrainer = "fake"\nmodel = "fake"\ntasks = ["basic_arithmetic"]\n' + CALM)
    spawned: list[int] = []
    spawn = background.spawn_detached

    def noted(home: Home, arguments: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
        spawned.append((process := spawn(home, arguments, errors)).pid)
        return process

    monkeypatch.setattr(background, "spawn_detached", noted)
    first = asyncio.create_task(dashboard._start(home, dashboard._feed(home), None))
    for _ in count():
        if await asyncio.to_thread(supervisor.starting_pid, home) is not None:
            break
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    try:
        await dashboard._start(home, dashboard._feed(home), None)
        status = await supervisor.query_status(home)
        assert status is not None
        assert [status.pid] == spawned
    finally:
        await supervisor.shut_down_node(home)


async def test_a_key_that_leaves_right_behind_the_one_that_starts_the_node_warns_of_nothing() -> None:
    async def start(answers: FirstRunAnswers | None) -> None:
        return None

    app = SapoDashboard(ScriptedFeed([*SILO, GONE]), start=start)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        assert app.state.gone
        app.post_message(events.Key("space", " "))
        app.post_message(events.Key("q", "q"))
        while app.is_running:
            await pilot.pause()
    assert app.return_value == "stop"
    gc.collect()
