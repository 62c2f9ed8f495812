"""What was begun on a screen comes to its end, or is taken back, when that screen is closed meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.functional.app.test_settings_screen import choose, said, until
from tests.support.node_process import FAKE, node, reaches
from tests.support.scripted_actions import ScriptedModels
from tests.support.scripted_feed import SILO, app_over

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.models.screen import ModelScreen, ModelsScreen
from sapo_desktop.dashboard.screens.settings import SettingsScreen
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.nodes import supervisor


@pytest.mark.parametrize(("before", "after"), [("", "running"), ("finish", "finishing")])
async def test_a_node_whose_restart_is_taken_back_goes_on_as_it_was(home: Home, before: str, after: str) -> None:
    async with node(home.config, *FAKE, "--model", "fake:0.3", "--local-groups", "64") as (client, _):
        await reaches(client, ("state",), lambda event: event.state == "running")
        if before:
            await client.post(before)
        restart = asyncio.create_task(supervisor.relaunch_node(home))
        await reaches(client, ("state",), lambda event: event.state == "finishing")
        restart.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restart
        assert (await client.status()).state == after


@pytest.mark.parametrize("key", ["escape", "enter"])
async def test_applying_goes_on_when_the_settings_are_closed_or_changed_meanwhile(home: Home, key: str) -> None:
    round_done, ended = asyncio.Event(), asyncio.Event()

    class Slow(HomeSettings):
        async def restart(self) -> str:
            await round_done.wait()
            ended.set()
            return "The node goes on"

    app = SapoDashboard(ReplayFeed([], 0), settings_actions=Slow(home))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and bool(app.screen.listed))
        screen = await choose(pilot, "limits.pause_when_active")
        await pilot.press("a", key)
        await until(pilot, lambda: app.screen is not screen or any(row.saved for row in screen.rows))
        round_done.set()
        await until(pilot, lambda: "The node goes on" in said(pilot))
        assert ended.is_set()


async def test_a_model_that_is_deleted_from_its_own_page_is_gone_however_long_its_node_takes_to_stop() -> None:
    stopped = asyncio.Event()

    class Slow(ScriptedModels):
        async def delete(self, id: str) -> str:
            await stopped.wait()
            self.models = self.models[1:]
            return "Deleted sums"

    app = app_over(SILO, model_actions=Slow(SILO))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and "My models (2)" in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ModelScreen))
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("down", "enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        stopped.set()
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and "My models (1)" in said(pilot))
