"""Help: the keys of the place come first, and it opens over everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scenes import everything, scene_of, shown
from tests.support.scripted_actions import ScriptedSwarms
from tests.support.scripted_feed import NARROW, SWARM, app_over, settled
from textual.widgets import Input

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import ASCII, UNICODE, GlyphSet, binding_rows, to_ascii
from sapo_desktop.dashboard.palette import ActionPalette
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.help import HelpScreen
from sapo_desktop.dashboard.screens.models.chat import ChatScreen
from sapo_desktop.dashboard.screens.models.dialogs import NewModelDialog
from sapo_desktop.dashboard.screens.rollouts.screen import RolloutsScreen
from sapo_desktop.dashboard.screens.settings import SettingsScreen
from sapo_desktop.dashboard.screens.swarm.find import FindDialog
from sapo_desktop.dashboard.widgets.frame import KeyBar


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("place", "first"),
    [
        (DashboardScreen, "e   Reward chart alone, share chart alone"),
        (RolloutsScreen, "/   Open the search field"),
        (SettingsScreen, "Esc F2   Close the search, then the settings"),
        (FindDialog, "a   Ask for a directory's line"),
        (NewModelDialog, "down   next field"),
    ],
)
async def test_the_keys_of_the_place_come_first(place: type, first: str) -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await pilot.press(*scene_of(place).keys)
        await settled(pilot)
        await pilot.press("f1")
        lines = [" ".join(line.split()) for line in await settled(pilot)]
        at = next(n for n, line in enumerate(lines) if "Keys here" in line)
        assert " ".join(first.split()) in lines[at + 1], "\n".join(lines)


@pytest.mark.parametrize("keys", [("4", "n"), ("m",), ("f2",), ("3", "slash"), ("q",)])
async def test_f1_opens_help_over_dialogs_and_fields_and_closes_it_again(keys: tuple[str, ...]) -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press(*keys)
        await settled(pilot)
        below = pilot.app.screen
        await pilot.press("f1")
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.press("f1")
        assert pilot.app.screen is below


async def test_the_palette_opens_once_however_much_help_lies_over_it() -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+p", "f1", "ctrl+p")
        await settled(pilot)
        assert [type(screen) for screen in pilot.app.screen_stack[1:]] == [ActionPalette, HelpScreen]
        await pilot.press("f1", "escape")
        assert isinstance(pilot.app.screen, DashboardScreen)


async def test_the_first_questions_have_help() -> None:
    async with app_over([], first_run=True).run_test(size=NARROW) as pilot:
        assert any("F1 help" in line for line in await shown(pilot))
        await pilot.press("f1")
        assert isinstance(pilot.app.screen, HelpScreen)
        lines = await shown(pilot)
        everywhere = lines[next(n for n, line in enumerate(lines) if "Keys of every screen" in line) :]
        assert any("ctrl+q" in line for line in everywhere)
        assert not any("snooze" in line.lower() or "Pause or resume" in line for line in everywhere), "\n".join(lines)


@pytest.mark.parametrize("key", ["3", "5"])
async def test_while_a_text_is_typed_the_last_line_names_keys_that_are_no_letters(key: str) -> None:
    async with app_over(SWARM).run_test(size=NARROW) as pilot:
        await pilot.press(key, "slash")
        last = (await settled(pilot))[-1]
        assert isinstance(pilot.app.screen.focused, Input)
        assert last.rstrip().split("  ") == [" Enter keep", "Esc clear", "F1 help", "ctrl+q quit"]
        await pilot.press("escape")
        assert "? help  q quit" in (await settled(pilot))[-1]


async def test_help_over_a_field_lists_no_key_that_would_be_typed_into_it() -> None:
    """In the chat the field has the focus always: p, space and 1 are text there."""
    async with everything().run_test(size=(80, 60)) as pilot:
        await pilot.press(*scene_of(ChatScreen).keys)
        await settled(pilot)
        assert isinstance(pilot.app.screen.focused, Input)
        await pilot.press("f1")
        lines = await settled(pilot)
        first, last = (
            next(n for n, line in enumerate(lines) if word in line) for word in ("Keys here", "You are typing")
        )
        left = lines[first].index("Keys here")
        names = [line[left : left + 16] for line in lines[first + 1 : last] if "Keys of" not in line]
        keys = " ".join(names).split()
        assert {"Esc", "F1", "ctrl+q", "F3"} <= set(keys), "\n".join(lines)
        assert not [key for key in keys if len(key) == 1 or key == "space"], "\n".join(lines)


async def test_the_last_line_keeps_help_and_quit_however_many_keys_there_are() -> None:
    async with app_over(SWARM).run_test(size=NARROW) as pilot:
        bar = pilot.app.screen.query_one(KeyBar)
        many = [(str(n), "key", "") for n in range(9)]
        bar.put([*many, ("?", "help", ""), ("q", "quit", "")])
        assert [key for key, _, _ in bar.keys] == ["0", "1", "2", "3", "4", "5", "?", "q"]


async def test_a_host_sees_that_it_hosts() -> None:
    app = everything()
    assert isinstance(app.swarm_actions, ScriptedSwarms)
    app.swarm_actions.runs = True
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("2")
        while not any("hosted on this machine: h" in line for line in await settled(pilot)):
            await pilot.pause(0.02)


def all_of_it(glyphs: GlyphSet) -> str:
    return HelpScreen("", binding_rows(RolloutsScreen), binding_rows(SapoDashboard), glyphs).text(90).plain


def test_no_help_line_or_propositional_answer_in_ascii_holds_a_question_mark_that_the_unicode_one_does_not() -> None:
    told = to_ascii(all_of_it(ASCII))
    assert "?" in told
    assert told.count("?") == all_of_it(UNICODE).count("?")
    assert "1 right % partly 0 wrong ~ cut at the limit" in " ".join(told.split())
    assert to_ascii("(P ↔ Q) → ¬(P ∧ Q)") == "(P = Q) > !(P & Q)"


@pytest.mark.parametrize("keys", [("3", "slash"), ("4", "t", "y", "enter"), ("4", "n"), ("1",)])
async def test_no_frame_in_ascii_holds_a_question_mark_that_the_unicode_one_does_not(keys: tuple[str, ...]) -> None:
    asked = []
    for glyphs in ("unicode", "ascii"):
        app = everything(glyphs=glyphs)
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press(*keys)
            asked.append(sum(line.count("?") for line in await shown(pilot)))
    assert asked[0] == asked[1]
