"""Each key of the key table does something that can be seen or that reaches the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.make_recordings import recording
from tests.functional.app.test_goldens import shown
from tests.support.scripted_actions import ScriptedModels, ScriptedTasks, SettingsOfNowhere, findings
from tests.support.scripted_feed import SWARM, ScriptedFeed, app_over
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.key_table import PLACES, bindings, does, rows
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.actions import HomeActions

OPENED = {
    "1 dashboard": ("1",),
    "2 swarm": ("2",),
    "the Aha trail": ("2", "w"),
    "3 rollouts": ("3",),
    "two attempts": ("3", "w", "w", "x"),
    "4 models": ("4",),
    "5 log": ("5",),
    "settings": ("f2",),
    "doctor": ("d",),
    "help": ("question_mark",),
    "leaving": ("q",),
    "snooze": ("z",),
}
"""How the place is reached in a dashboard over a node. Two places have tests of their own: find (test_find_a_swarm) and chat
(test_models_by_keys); the first questions have theirs in test_dashboard."""
FIRST: dict[tuple[str, str], tuple[str, ...]] = {
    ("1 dashboard", "left"): ("plus",),
    ("1 dashboard", "right"): ("plus", "left"),
}
FIRST |= {("1 dashboard", key): ("plus",) for key in ("equals_sign", "shift+left", "less_than_sign", "shift+right")}
FIRST |= {("1 dashboard", "greater_than_sign"): ("plus", "less_than_sign"), ("1 dashboard", "minus"): ("plus",)}
FIRST |= {("1 dashboard", "shift+right"): ("plus", "less_than_sign")}
FIRST |= {(place, "escape"): ("slash",) for place in ("3 rollouts", "5 log")}
FIRST |= {("everywhere", "1"): ("2",)}
"""Keys that are pressed before, where a key has something to do only then."""
ELSEWHERE = {
    ("2 swarm", key): "it needs a swarm of one's own, a trial or the tripwire: the footer shows it then"
    for key in "sxatjf"
}
ELSEWHERE[("settings", "d")] = "it needs a setting that was changed: test_settings_screen"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    return found


def dashboard(home: Home) -> SapoDashboard:
    options: dict[str, Any] = {
        "model_actions": ScriptedModels(SWARM),
        "settings_actions": SettingsOfNowhere(home),
        "task_actions": ScriptedTasks(),
        "swarm_actions": HomeActions(home),
        "examine": findings,
        "start": lambda given: None,
    }
    return app_over(SWARM, **options)


async def seen(pilot: Pilot[object]) -> object:
    """All that a key may change: the picture, the focus, what the node was told, what was copied, whether the app is left."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    if not app.is_running:
        return "left"
    commands = len(app.feed.commands) if isinstance(app.feed, ScriptedFeed) else 0
    return await shown(pilot), app.focused, commands, app.clipboard, app.return_value, len(app._notifications)


KEYS = [
    (place, key)
    for place, owner in PLACES
    for binding in bindings(owner)
    for key in binding.key.split(",")
    if (place in OPENED or place == "everywhere")
    and not does(owner, binding).startswith(("In a recording", "A recording"))
]


def test_every_place_has_keys_and_every_key_says_what_it_does() -> None:
    for place, owner in PLACES:
        assert rows(owner), place
        assert all(len(text) > 2 for _, text in rows(owner)), place


@pytest.mark.parametrize("place", ["everywhere", *OPENED])
async def test_each_key_does_something(place: str, home: Home) -> None:
    idle = []
    keys = [key for where, key in KEYS if where == place and (place, key) not in ELSEWHERE]
    assert keys
    app = dashboard(home)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        for key in keys:
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
            app.clear_notifications()
            await pilot.press("1" if place == "everywhere" else "5", "1")
            for before in (*OPENED.get(place, ()), *FIRST.get((place, key), ())):
                await pilot.press(before)
                await shown(pilot)
            was = await seen(pilot)
            await pilot.press(key)
            if await seen(pilot) == was:
                idle.append(key)
            if not app.is_running or app._exit:
                break
            if place in ("3 rollouts", "5 log"):
                await pilot.press("escape")
    assert idle == []


async def test_the_keys_of_a_recording_move_it() -> None:
    events = list(recording("silo", 30, 7))
    feed = ReplayFeed(events, 1.0, events[len(events) // 2].time, clock=lambda: 0.0)
    app = SapoDashboard(feed)
    async with app.run_test(size=(120, 36)) as pilot:
        for key in ("left_square_bracket", "right_square_bracket", "comma", "full_stop", "space", "circumflex_accent"):
            was = (feed.now(), feed.speed, feed.held)
            await pilot.press(key)
            assert (feed.now(), feed.speed, feed.held) != was, key
