"""What a line holds: columns rather than characters, one group, the speed of a recording, as many keys as fit."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from tests.fixtures.make_recordings import recording
from textual.app import App, ComposeResult

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import end_of, format_group_count, hanging_indent, shorten_phrases, wrap_text
from sapo_desktop.dashboard.replay import SPEEDS, ReplayFeed
from sapo_desktop.dashboard.screens.dialogs import SnoozeDialog
from sapo_desktop.dashboard.widgets.frame import Key, KeyBar

KEYS: list[Key] = [("space", "pause", ""), ("e", "expand", ""), ("?", "help", ""), ("q", "quit", "")]
WIDTH = len("space pause  e expand  ? help  q quit")
SILO = list(recording("silo", 4, 7))


class Bar(App[None]):
    """A line of keys alone."""

    def compose(self) -> ComposeResult:
        yield KeyBar(KEYS)


@pytest.mark.parametrize("text", ["日本語の名前 " * 6, "日本語の名前です · " * 6, "日" * 40, "a word " * 9])
def test_lines_are_measured_in_columns(text: str) -> None:
    if " " in text:
        assert max(map(cell_len, wrap_text(text, 30))) <= 30
        assert max(map(cell_len, hanging_indent(text, 30, 4).split("\n"))) <= 30
    assert 0 < cell_len(shorten_phrases(text, 30)) <= 30
    assert 28 < cell_len(end_of(text, 30)) <= 30
    assert text.endswith(end_of(text, 30).removeprefix("…"))


@pytest.mark.parametrize(("number", "said"), [(0, "0 groups"), (1, "1 group"), (1870, "1,870 groups")])
def test_one_group_is_no_groups(number: int, said: str) -> None:
    assert format_group_count(number) == said


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_badge_tells_the_speed_as_it_is(speed: float) -> None:
    assert f"REPLAY {speed:g}x " in ReplayFeed(SILO, speed).badge


@pytest.mark.parametrize(("width", "kept"), [(WIDTH, 4), (WIDTH - 1, 3)])
async def test_a_key_goes_only_where_there_is_no_room_for_it(width: int, kept: int) -> None:
    async with Bar().run_test(size=(width, 3)) as pilot:
        assert len(pilot.app.query_one(KeyBar).render().plain.split("  ")) == kept


async def test_over_a_recording_no_time_to_snooze_is_asked_for() -> None:
    async with SapoDashboard(ReplayFeed(SILO, speed=0)).run_test(notifications=True) as pilot:
        await pilot.press("z")
        assert not isinstance(pilot.app.screen, SnoozeDialog)
