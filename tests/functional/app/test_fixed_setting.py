"""A setting that says what a model is: it cannot be typed over, and the screen says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scripted_feed import settled

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.settings.screen import SettingsScreen
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.settings.rows import NEVER, SettingRow


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
        assert "For another: screen 4, then n" in [note.message for note in app._notifications][-1]
