"""F2 under a pilot, over real files and a real node; limits that count while a node runs."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.node_process import FAKE, node
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from sapo_desktop import cli, settings
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.settings import SettingEditor, SettingsScreen
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.settings import editing
from sapo_desktop.settings.editing import SIMPLE
from sapo_swarm.events import StateChanged
from sapo_swarm.node.governor.rules import DAYS


@pytest.fixture
async def pilot(home: Home) -> AsyncIterator[Pilot[object]]:
    """The settings screen, open at 80x24, with every row read."""
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=HomeSettings(home))
    async with app.run_test(size=(80, 24), notifications=True) as driver:
        await driver.press("f2")
        await until(driver, lambda: isinstance(app.screen, SettingsScreen) and bool(app.screen.listed))
        yield driver


async def until(pilot: Pilot[object], wanted: Callable[[], bool]) -> None:
    while not wanted():
        await pilot.pause(0.02)


def said(pilot: Pilot[object]) -> str:
    return "\n".join("".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips())


async def choose(pilot: Pilot[object], key: str) -> SettingsScreen:
    """Put the cursor on a setting."""
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    listing = screen.query_one("#rows", OptionList)
    listing.highlighted = listing.get_option_index(key)
    await pilot.pause()
    return screen


async def test_a_search_puts_the_cursor_on_the_setting_of_that_name(pilot: Pilot[object]) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    await pilot.press("slash", *"temperature", "enter")
    await until(pilot, lambda: len(screen.listed) < 9)
    assert "limits.max_celsius" in [row.key for row in screen.listed]  # its help speaks of temperature, and it is above
    assert screen.chosen is not None
    assert screen.chosen.key == "run.temperature"


async def test_every_setting_is_listed_with_its_value_and_where_it_comes_from(pilot: Pilot[object], home: Home) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    assert [row.key for row in screen.rows] == [field.key for field in settings.setting_fields()]
    lines = said(pilot)
    assert "run.model" in lines
    assert str(home.settings)[-20:] in lines, "of a long path the end is shown"
    assert "starter (the default)" in lines


async def test_a_value_is_typed_checked_and_written(pilot: Pilot[object], home: Home) -> None:
    screen = await choose(pilot, "run.group_size")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingEditor))
    pilot.app.screen.query_one("#value", Input).value = "1"
    await pilot.press("enter")
    complaint = pilot.app.screen.query_one("#complaint", Static)
    await until(pilot, lambda: "2 to 64" in str(complaint.content))
    assert not home.settings.exists(), "what is refused is not written"
    pilot.app.screen.query_one("#value", Input).value = "6"
    await pilot.press("enter")
    await until(pilot, lambda: pilot.app.screen is screen and any(r.saved for r in screen.rows))
    assert tomllib.loads(home.settings.read_text()) == {"run": {"group_size": 6}}
    await pilot.press("d")
    await until(pilot, lambda: not any(row.saved for row in screen.rows))
    assert tomllib.loads(home.settings.read_text()) == {}


async def test_a_name_that_no_schema_knows_is_refused_with_the_nearest(pilot: Pilot[object]) -> None:
    await choose(pilot, "run.tasks")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingEditor))
    pilot.app.screen.query_one("#value", Input).value = "bf, calendar_arithmetik"
    await pilot.press("enter")
    complaint = pilot.app.screen.query_one("#complaint", Static)
    await until(pilot, lambda: "Did you mean 'calendar_arithmetic'?" in str(complaint.content))


async def test_yes_and_no_are_turned_and_choices_are_chosen(pilot: Pilot[object], home: Home) -> None:
    screen = await choose(pilot, "limits.pause_when_active")
    await pilot.press("enter")
    await until(pilot, lambda: any(row.value == "true" and row.saved for row in screen.rows))
    await choose(pilot, "ui.theme")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingEditor))
    options = pilot.app.screen.query_one("#value", OptionList)
    options.highlighted = sorted(pilot.app.available_themes).index("sapo-light")
    await pilot.press("enter")
    await until(pilot, lambda: pilot.app.theme == "sapo-light")
    found = settings.load_settings(home.settings)
    assert (found.limits.pause_when_active, found.ui.theme) == (True, "sapo-light")


async def test_settings_are_found_by_words_of_their_explanation(pilot: Pilot[object]) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    await pilot.press("slash", *"niceness", "enter")
    assert [row.key for row in screen.listed] == ["limits.nice"]
    await pilot.press("escape")
    assert len(screen.listed) == len(screen.rows)
    await pilot.press("escape")
    assert pilot.app.screen is not screen


async def test_a_broken_file_is_named_and_left_alone(home: Home) -> None:
    home.settings.write_text("[run\n")
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=HomeSettings(home))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: "not valid TOML" in said(pilot))
    assert home.settings.read_text() == "[run\n"


async def test_a_theme_from_the_palette_stays_for_the_next_time(home: Home) -> None:
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=HomeSettings(home))
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = "nord"
        await until(pilot, home.settings.exists)
    assert settings.load_settings(home.settings).ui.theme == "nord"


async def test_what_was_changed_reaches_the_node_when_it_is_asked_to_start_again(home: Home) -> None:
    """The row tells the two values apart; a applies; what the node's starter typed stays."""
    actions = HomeSettings(home)
    async with node(home.config, *FAKE, "--model", "fake:0.002", "--group-size", "4") as (client, process):
        app = SapoDashboard(ControlFeed(home.socket), settings_actions=actions)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("f2")
            await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and bool(app.screen.listed))
            screen = await choose(pilot, "run.max_new_tokens")
            await actions.change("run.max_new_tokens", "32", store.find_model(home).name)
            screen._read()
            await until(pilot, lambda: "96. Press a" in said(pilot))
            await pilot.press("a")
            await until(pilot, lambda: all(not row.running for row in screen.rows if row.key == "run.max_new_tokens"))
            assert await asyncio.to_thread(process.wait, 30) == 0
        config = await client.config()
        assert (config.max_new_tokens, config.group_size) == (32, 4)
        await client.post("stop")


async def test_a_schedule_counts_at_once_for_the_node_that_runs_and_can_be_overridden(home: Home) -> None:
    """Whatever the hour is now: the schedule is one minute long, and it is the minute before."""
    async with node(home.config, *FAKE, "--model", "fake:0.01") as (client, _):
        states: list[StateChanged] = []

        async def waits_for(state: str, reason: str) -> None:
            async for event in client.events(after=states[-1].seq if states else 0, kinds=("state",)):
                if isinstance(event, StateChanged) and (event.state, event.reason) == (state, reason):
                    states.append(event)
                    return

        await waits_for("running", "")
        await asyncio.to_thread(editing.change_setting, home.settings, "limits.schedule", closed_now())
        await waits_for("paused", "schedule")
        assert "out of hours until" in states[-1].sentence
        await client.post("run_anyway", for_s=3600)
        await waits_for("running", "")
        await client.post("stop")


def closed_now() -> str:
    """A schedule that opens half a week from now, for a minute."""
    return f"{DAYS[(time.localtime().tm_wday + 3) % 7]} 12:00-12:01"


def test_the_terminal_changes_and_resets_settings_as_f2_does(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["config", "set", "run.preset", "starte"]) == 2
    assert cli.run_command_line(["config", "set", "limits.schedule", "8-17"]) == 2
    assert "mon-fri 18:00-08:00" in capsys.readouterr().err
    assert not home.settings.exists()
    assert cli.run_command_line(["config", "set", "run.rounds", "12"]) == 0
    assert cli.run_command_line(["config", "get"]) == 0
    assert "run.rounds = 12   (from config.toml; default 0)" in capsys.readouterr().out
    assert cli.run_command_line(["config", "reset", "run.rounds"]) == 0
    assert [row.key for row in editing.setting_rows(home.settings) if row.saved] == []


async def test_simple_settings_come_first_and_can_be_seen_alone(pilot: Pilot[object]) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    assert {row.key for row in screen.rows} >= SIMPLE, "each is a setting"
    assert [row.key in SIMPLE for row in screen.listed] == sorted(
        (row.key in SIMPLE for row in screen.listed), reverse=True
    )
    advanced = len(screen.rows) - len(SIMPLE)
    assert f"Simple  {len(SIMPLE)}  and {advanced} advanced, below" in said(pilot)
    assert "v simple" in said(pilot)
    await pilot.press("v")
    assert {row.key for row in screen.listed} == SIMPLE
    await until(pilot, lambda: f"Simple  {len(SIMPLE)}  and {advanced} advanced, hidden, v shows them" in said(pilot))
    assert "v all" in said(pilot)
    await pilot.press("slash", *"nice")
    await until(pilot, lambda: [row.key for row in screen.listed] == ["limits.nice"])  # a search finds all of them


async def test_a_wide_row_says_what_its_setting_does(home: Home) -> None:
    app = SapoDashboard(ReplayFeed([], 0), settings_actions=HomeSettings(home))
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: "Difficulty: starter, paper or hard" in said(pilot))


async def test_the_first_questions_are_opened_again_from_the_settings(home: Home) -> None:
    started: list[FirstRunAnswers | None] = []
    feed = ReplayFeed([], 0)
    app = SapoDashboard(feed, start=lambda given: started.append(given), settings_actions=HomeSettings(home))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and bool(app.screen.listed))
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, FirstRunScreen))
        assert started == [None], "what was started with the dashboard; Esc starts nothing more"
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and bool(app.screen.listed))
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("enter")
        await until(pilot, lambda: started == [None, FirstRunAnswers()])
