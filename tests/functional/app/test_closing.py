"""A key too many, typed before a dialog is gone, closes nothing else."""

from __future__ import annotations

import pytest
from tests.support.scenes import everything, screen_classes
from tests.support.scripted_feed import NARROW, app_over, settled
from textual import events

from sapo_desktop.dashboard.screens.base import DismissOnceScreen
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.dialogs import Dialog, QuitDialog
from sapo_desktop.dashboard.screens.help import HelpScreen


def test_every_screen_closes_once() -> None:
    assert [screen.__name__ for screen in screen_classes() if not issubclass(screen, DismissOnceScreen)] == []


@pytest.mark.parametrize(
    ("keys", "twice"),
    [
        (("z",), "enter"),
        (("q",), "escape"),
        (("2", "l"), "enter"),
        (("2", "h"), "enter"),
        (("4", "x"), "enter"),
        (("4", "n"), "enter"),
        (("f2", "enter"), "escape"),
    ],
)
async def test_a_key_that_comes_twice_at_once_ends_nothing(keys: tuple[str, ...], twice: str) -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press(*keys)
        for _ in range(3):
            pilot.app.post_message(events.Key(twice, None))
        await settled(pilot)
        assert pilot.app.is_running
        assert pilot.app._exception is None


@pytest.mark.parametrize("keys", [("2", "f"), ("4", "n"), ("f1",), ("slash",)])
@pytest.mark.parametrize("leave", ["ctrl+c", "ctrl+q"])
async def test_ctrl_c_asks_how_to_leave_whatever_dialog_is_open(keys: tuple[str, ...], leave: str) -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press(*keys, leave)
        await settled(pilot)
        assert isinstance(pilot.app.screen, QuitDialog)


async def test_keys_behind_the_answer_with_which_the_dashboard_is_left_do_not_replace_it() -> None:
    app = everything()
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await pilot.press("enter")
    assert app.screen_stack == []
    await app.on_event(events.Key("x", "x"))
    assert app.return_value in ("background", "stop")


async def test_the_first_questions_are_answered_once() -> None:
    async with app_over([], first_run=True).run_test(size=NARROW) as pilot:
        while not isinstance(pilot.app.screen, Dialog):
            await pilot.pause()
        questions = pilot.app.screen
        await pilot.press("f1")
        questions.dismiss(None)
        questions.dismiss(None)
        assert isinstance(pilot.app.screen, HelpScreen), "it does not take the help away"
        await pilot.press("f1")
        await pilot.pause()
    assert pilot.app.return_value is None


async def test_what_ends_under_the_help_closes_when_that_is_gone() -> None:
    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        answers: list[None] = []
        below = Dialog[None]()
        await pilot.app.push_screen(below, answers.append)
        await pilot.press("f1")
        below.dismiss()
        await settled(pilot)
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.press("f1")
        await settled(pilot)
        assert isinstance(pilot.app.screen, DashboardScreen)
        assert answers == [None]
