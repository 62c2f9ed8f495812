"""Settings of one model: what it is cannot be typed over, and what is typed is written to that model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scripted_feed import settled
from textual.widgets import OptionList

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.settings import SettingsScreen
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.settings.editing import NEVER, SettingRow
from sapo_swarm.config import RunConfig


class _OfOneModel(HomeSettings):
    async def rows(self) -> tuple[SettingRow, ...]:
        return (SettingRow("run.model", "The base", "text", (), "starter", "starter", False, NEVER, owner="kim"),)


async def test_what_a_model_is_cannot_be_typed_over_and_the_way_to_another_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=_OfOneModel(Home.find()))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("f2")
        while not (isinstance(app.screen, SettingsScreen) and app.screen.listed):
            await pilot.pause(0.02)
        assert not any("--model" in line for line in await settled(pilot)), "no command that would be refused"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen)
        assert "For a model with another: screen 4, then n" in [note.message for note in app._notifications][-1]


async def test_what_is_typed_is_written_to_the_model_whose_settings_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node goes on with another model while the editor is open."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    home.prepare()
    store.create_model_folder(home, "ada", RunConfig(model="fake", trainer="fake"))
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=HomeSettings(home))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f2")
        while not (isinstance(app.screen, SettingsScreen) and app.screen.listed):
            await pilot.pause(0.02)
        screen, listing = app.screen, app.screen.query_one("#rows", OptionList)
        listing.highlighted = listing.get_option_index("run.max_new_tokens")
        await pilot.press("enter", "backspace", "backspace", *"32")
        store.create_model_folder(home, "bo", RunConfig(model="fake", trainer="fake"))
        await pilot.press("enter")
        while not (app.screen is screen and any(row.owner == "bo" for row in screen.rows)):
            await pilot.pause(0.02)
        await HomeSettings(home).change("run.group_size", "5", "ada")
        await HomeSettings(home).reset("run.group_size", "ada")
    told = {model.name: (model.config.max_new_tokens, model.config.group_size) for model in store.all_models(home)}
    assert told == {"ada": (32, 8), "bo": (96, 8)}
    assert not home.settings.exists()
