"""A node that is started from the dashboard: once, and known of whatever becomes of whoever started it."""

from __future__ import annotations

import asyncio
import gc
from itertools import count

import pytest
from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, settled
from textual import events

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.messages import Link
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.nodes import background, supervisor

GONE = Link(False, "The node is gone", SILO[-1].time, ended=True)


@pytest.mark.parametrize("steps", [0, 1, 2, None])
async def test_a_start_cancelled_at_any_moment_leaves_no_process_that_starting_does_not_name(
    home: Home, steps: int | None
) -> None:
    """steps: of the event loop; None: as soon as there is a process."""
    before = set(background._children)
    starting = asyncio.create_task(supervisor.start(home, []))
    for step in count():
        if step == steps or set(background._children) - before:
            break
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    children = set(background._children) - before
    try:
        assert [supervisor.starting(home)] == ([child.pid for child in children] or [None])
    finally:
        for child in children:
            child.kill()
            child.wait()


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
