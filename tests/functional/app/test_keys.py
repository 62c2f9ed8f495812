"""Each key of the key table does something that can be seen or that reaches the node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.make_recordings import recording
from tests.support.manual import PLACES
from tests.support.scenes import everything, scene_of, screen_classes, shown
from tests.support.scripted_feed import ScriptedFeed
from textual.pilot import Pilot
from textual.widgets import OptionList

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import binding_rows, describe_binding, own_bindings
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.first_run import BasesDialog, FirstRunScreen
from sapo_desktop.dashboard.screens.models.dialogs import NameDialog
from sapo_desktop.dashboard.screens.swarm.dialogs import JoinDialog
from sapo_desktop.paths import Home

OPENED = {
    place: ("1",) if owner is DashboardScreen else scene_of(owner).keys
    for place, owner in PLACES
    if owner not in (SapoDashboard, FirstRunScreen, BasesDialog)
}
"""How the place is reached in a dashboard over a node: as for its golden. The first questions have tests of their own, in
test_dashboard."""
FIRST: dict[tuple[str, str], tuple[str, ...]] = {}
for charts in ("1 dashboard", "one model", "two models"):
    FIRST |= {(charts, key): ("plus",) for key in ("equals_sign", "shift+left", "less_than_sign", "left", "minus")}
    FIRST |= {(charts, key): ("plus", "left") for key in ("shift+right", "greater_than_sign", "right")}
FIRST |= {("a task: its file", key): ("down",) for key in ("up", "pageup")}
FIRST |= {(place, "escape"): ("slash",) for place in ("3 rollouts", "5 log")}
FIRST |= {("everywhere", "1"): ("2",), ("chat", "f4"): ("y", "enter")}
"""Keys that are pressed before, where a key has something to do only then."""
ELSEWHERE = {
    ("2 swarm", key): "it needs a swarm of one's own, a trial or the tripwire: the footer shows it then"
    for key in "sxatjf"
}
ELSEWHERE[("a swarm to join", "r")] = "the directories say the same again: test_find_a_swarm"
ELSEWHERE[("the hosted swarm", "j")] = "it needs a node that is in no swarm: test_join_and_host"
ELSEWHERE |= {
    ("a task: what to expect", key): "it needs more text than there is room for: test_task_wizard"
    for key in ("down", "up", "pagedown", "pageup")
}
ELSEWHERE |= {("a task: its rows", key): ELSEWHERE["a task: what to expect", key] for key in ("pagedown", "pageup")}
ELSEWHERE[("settings", "d")] = "it needs a setting that was changed: test_settings_screen"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    return found


def dashboard() -> SapoDashboard:
    return everything(start=lambda given: None)


async def seen(pilot: Pilot[object]) -> object:
    """All that a key may change: the picture, the focus, what the node was told, what was copied, whether the app is left."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    if not app.is_running:
        return "left"
    commands = len(app.feed.commands) if isinstance(app.feed, ScriptedFeed) else 0
    cursors = [one.highlighted for one in app.screen.query(OptionList)]
    return await shown(pilot), app.focused, cursors, commands, app.clipboard, app.return_value, len(app._notifications)


KEYS = [
    (place, key)
    for place, owner in PLACES
    for binding in own_bindings(owner)
    for key in binding.key.split(",")
    if (place in OPENED or place == "everywhere")
    and not describe_binding(owner, binding).startswith(("In a recording", "A recording"))
]


def test_every_screen_that_has_keys_is_in_the_table() -> None:
    with_keys = {screen for screen in screen_classes() if any(own_bindings(screen))}
    assert with_keys - {owner for _, owner in PLACES} == set()


def test_every_place_has_keys_and_every_key_says_what_it_does() -> None:
    for place, owner in PLACES:
        assert binding_rows(owner), place
        assert all(len(text) > 2 for _, text in binding_rows(owner)), place


@pytest.mark.parametrize("place", ["everywhere", *OPENED])
async def test_each_key_does_something(place: str) -> None:
    idle: list[str] = []
    now: object = None
    keys = [key for where, key in KEYS if where == place and (place, key) not in ELSEWHERE]
    assert keys
    app = dashboard()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        for key in keys:
            app.clear_notifications()
            opening: tuple[str, ...] = ()
            if type(app.screen) is not dict(PLACES)[place]:
                while len(app.screen_stack) > 1:
                    await pilot.press("escape")
                await pilot.press("1" if place == "everywhere" else "5", "1")
                opening, now = OPENED.get(place, ()), None
            pressed = (*opening, *FIRST.get((place, key), ()))
            for before in pressed:
                await pilot.press(before)
                await shown(pilot)
            if now is None or pressed:
                now = await seen(pilot)
            was = now
            await pilot.press(key)
            now = await seen(pilot)
            if now == was:
                idle.append(key)
            if not app.is_running or app._exit:
                break
            if place in ("3 rollouts", "5 log"):
                await pilot.press("escape")
            if place in ("3 rollouts", "5 log") or app._notifications:  # to be cleared
                now = None
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


async def test_the_palette_reaches_what_every_key_of_every_screen_does() -> None:
    modes = {
        "1 dashboard": "Dashboard",
        "2 swarm": "Swarm",
        "3 rollouts": "Rollouts",
        "4 models": "My models",
        "5 log": "Log",
    }
    app = dashboard()
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        offered = {command.title: command.callback for command in app.get_system_commands(app.screen)}
        for place, owner in PLACES:
            if place in modes:
                wanted = {f"{modes[place]}: {one.description}" for one in own_bindings(owner) if one.key != "escape"}
                assert wanted - set(offered) == set(), place
        for title, screen in (("Swarm: join", JoinDialog), ("My models: rename", NameDialog)):
            await offered[title]()  # type: ignore[misc]
            await shown(pilot)
            assert isinstance(app.screen, screen)
            await pilot.press("escape")
