"""The dashboard under a pilot: every screen, every key, at the smallest and at a wide size."""

from __future__ import annotations

import re

import pytest
from tests.support.scripted_actions import ScriptedModels
from tests.support.scripted_feed import NARROW, SILO, SWARM, WIDE, ScriptedFeed, app_over, feed_of, settled
from textual.widgets import Input

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.models.screen import ModelsScreen
from sapo_desktop.dashboard.state import NodeLink, apply_event
from sapo_desktop.dashboard.widgets.frame import MAX_KEYS, KeyBar
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_swarm.events import Event, LogLine, RunStarted, StateChanged
from sapo_swarm.node.round_warnings import MASTERED


@pytest.mark.parametrize("size", [NARROW, WIDE, (100, 24), (200, 60)])
@pytest.mark.parametrize("events", [SILO, SWARM], ids=["silo", "swarm"])
async def test_every_screen_draws_at_every_size(size: tuple[int, int], events: list[Event]) -> None:
    async with app_over(events).run_test(size=size) as pilot:
        for key, expected in (("1", "Held-out pass@1"), ("2", "Swarm"), ("3", "Question and attempts"), ("5", "Log")):
            await pilot.press(key)
            lines = await settled(pilot)
            assert any(expected in line for line in lines), "\n".join(lines)
            assert "sapo-desktop" in lines[0]
            assert "quit" in lines[-1]


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_no_key_breaks_anything(size: tuple[int, int]) -> None:
    keys = (
        "e e e f f s s s s plus plus minus equals_sign space F r z escape z 1 question_mark escape f1 escape "
        "T plus X left left b right less_than_sign X T b "
        "1 2 3 t o w slash a enter escape down down home 5 slash b enter escape 4 6 tab up left right 1"
    )
    async with app_over(SWARM).run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press(*keys.split())
        assert pilot.app.is_running
        await pilot.press("q")
        lines = await settled(pilot)
        assert any("Leave the dashboard?" in line for line in lines)


@pytest.mark.parametrize("held", [False, True], ids=["first frame comes", "a screen of an early key holds it back"])
async def test_the_node_is_started_once_whether_the_first_frame_comes_or_not(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if held:
        monkeypatch.setattr(SapoDashboard, "call_after_refresh", lambda *_: None)
    started: list[FirstRunAnswers | None] = []
    app = app_over(SILO, start=started.append)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        app._first_frame_is_out()  # the other of the two that call it
        await settled(pilot)
        assert started == [None]


async def test_the_keys_tell_the_node_what_the_person_wants() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("space", "F", "r", "z", "2")
        await settled(pilot)
        assert feed_of(app).commands == [
            ("pause", {}),
            ("finish", {}),
            ("run_anyway", {"for_s": 3600}),
            ("snooze", {"for_s": 3600}),
        ]


async def test_space_resumes_a_paused_node_and_the_footer_says_so() -> None:
    paused = StateChanged(time=SILO[-1].time, state="paused", sentence="Paused: on battery · r to run anyway 1 h")
    app = app_over([*SILO, paused])
    async with app.run_test(size=WIDE) as pilot:
        lines = await settled(pilot)
        assert "Paused: on battery" in lines[0]
        assert sum("Paused: on battery" in line for line in lines) == 2, "the Now panel says it itself"
        assert "space resume" in lines[-1]
        await pilot.press("space")
        await settled(pilot)
        assert feed_of(app).commands == [("resume", {})]


async def test_after_the_end_of_a_training_the_footer_leads_to_the_model() -> None:
    finished = StateChanged(time=SILO[-1].time - 9, state="paused", sentence=MASTERED, reason="done")
    app = app_over([*SILO, finished], model_actions=ScriptedModels(SILO))
    async with app.run_test(size=NARROW) as pilot:
        lines = await settled(pilot)
        assert lines[0].rstrip().endswith("Finished: all training answers right for 3 rounds"), (
            "whole, and no clock that runs on"
        )
        assert any("Next: 4, then t to chat or e to export" in line for line in lines), "\n".join(lines)
        assert "4 chat, export" in lines[-1]
        await pilot.click(KeyBar, offset=(lines[-1].index("chat, export") - 1, 0))
        assert isinstance(app.screen, ModelsScreen)


@pytest.mark.parametrize("height", [24, 36])
async def test_the_newest_lines_of_a_log_are_in_view_and_keys_lead_to_its_beginning_and_end(height: int) -> None:
    """Lines are wrapped: eleven of them do not fit into a small terminal."""
    words = "of a line that is so long that it is wrapped several times in a terminal of eighty columns, " * 3
    log: list[Event] = [LogLine(time=float(n), level="info", text=f"Number {n:02} {words}") for n in range(11)]
    async with app_over(log).run_test(size=(80, height)) as pilot:
        await pilot.press("5")
        assert any("Number 10" in line for line in await settled(pilot))
        await pilot.press("home")
        lines = await settled(pilot)
        assert any("Number 00" in line for line in lines)
        assert not any("Number 10" in line for line in lines)
        await pilot.press("end")
        assert any("Number 10" in line for line in await settled(pilot))


async def test_the_log_follows_its_newest_line_after_a_resize_and_after_an_hour_on_another_screen() -> None:
    words = "of a line that is so long that it is wrapped several times, " * 4
    log: list[Event] = [LogLine(time=float(n), level="info", text=f"Number {n:02} {words}") for n in range(11)]
    app = app_over(log)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("5")
        await settled(pilot)
        await pilot.resize_terminal(80, 24)
        assert any("Number 10" in line for line in await settled(pilot))
        await pilot.press("1")
        for n in range(11, 40):
            app.state = apply_event(app.state, LogLine(time=float(n), level="info", text=f"Number {n} {words}"))
        await pilot.press("5")
        assert any("Number 39" in line for line in await settled(pilot))
        await pilot.press("up", "up")
        app.state = apply_event(app.state, LogLine(time=40.0, level="info", text=f"Number 40 {words}"))
        assert not any("Number 40" in line for line in await settled(pilot)), "whoever reads an older line keeps it"


async def test_a_refused_command_is_told_as_plain_text() -> None:
    feed = ScriptedFeed(list(SILO), refuses="No node is running [/bad] \x1b[31m")
    app = SapoDashboard(feed)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await settled(pilot)
        await pilot.press("space")
        lines = await settled(pilot)
        assert any("No node is running [/bad] ·[31m" in line for line in lines)


@pytest.mark.parametrize(("key", "choice"), [("s", "stop"), ("b", "background")])
async def test_quitting_says_what_becomes_of_the_node(key: str, choice: str) -> None:
    app = app_over(SILO)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("q", key)
        await pilot.pause()
    assert app.return_value == choice


async def test_space_starts_a_node_that_stopped_and_the_header_keeps_its_last_words() -> None:
    last = StateChanged(time=SILO[-1].time, state="failed", sentence="Failed: the disk is full")
    starts: list[FirstRunAnswers | None] = []
    feed = ScriptedFeed([*SILO, last, NodeLink(False, "The node went away", last.time)])
    app = SapoDashboard(feed, start=lambda given: starts.append(given))
    async with app.run_test(size=WIDE) as pilot:
        lines = await settled(pilot)
        assert "Failed: the disk is full · space starts the node again" in lines[0]
        assert "space start" in lines[-1]
        await pilot.press("space")
        await settled(pilot)
    assert starts == [None, None]
    assert feed.commands == []


async def test_leaving_asks_nothing_when_the_node_is_gone() -> None:
    """Whoever opened the dashboard still makes sure of it, as after "stop everything"."""
    last = StateChanged(time=SILO[-1].time, state="failed", sentence="Failed: the disk is full")
    feed = ScriptedFeed([*SILO, last, NodeLink(False, "The node went away", last.time)])
    app = SapoDashboard(feed, start=lambda given: None)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == "stop"


@pytest.mark.parametrize("left", [0, 1])
async def test_space_starts_the_node_for_a_model_and_asks_where_none_is_left(left: int) -> None:
    """Nobody asked for a model of the app's own choice."""
    models, started = ScriptedModels(SILO), list[FirstRunAnswers | None]()
    models.models = models.models[:left]
    last = StateChanged(time=SILO[-1].time, state="stopped", sentence="Stopped after round 40.")
    feed = ScriptedFeed([*SILO, last, NodeLink(False, "The node went away", last.time)])
    app = SapoDashboard(feed, start=started.append, model_actions=models)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        before = len(started)
        await pilot.press("space")
        await settled(pilot)
        assert isinstance(app.screen, FirstRunScreen) == (left == 0)
        assert started[before:] == [None] * left


async def test_cancelling_the_quit_dialog_goes_back() -> None:
    app = app_over(SILO)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("q", "escape")
        await settled(pilot)
        assert app.is_running
        assert len(app.screen_stack) == 1


async def test_a_recording_closes_without_a_question() -> None:
    app = SapoDashboard(ReplayFeed(SILO, speed=0))
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value is None


@pytest.mark.parametrize("size", [(60, 15), (79, 24), (80, 23), (20, 5)])
async def test_a_terminal_that_is_too_small_gets_one_sentence(size: tuple[int, int]) -> None:
    async with app_over(SILO).run_test(size=size) as pilot:
        lines = await settled(pilot)
        said = re.sub(r"\s+", " ", " ".join(lines)).strip()
        start = f"This terminal is {size[0]}x{size[1]}; the dashboard needs 80x24."
        assert said.startswith(start[: size[0] * size[1] // 4])
        assert "Reward" not in said


async def test_the_first_minute_has_no_empty_boxes() -> None:
    started = [event for event in SILO if isinstance(event, RunStarted)]
    async with app_over([*started, StateChanged(time=1.0, state="running", sentence="Training")]).run_test(
        size=WIDE
    ) as pilot:
        said = re.sub(r"[\s│]+", " ", " ".join(await settled(pilot)))
        assert "generating 64 rollouts on cpu" in said
        assert "No measurement yet" in said
        assert "Each question gets several attempts" in said
        assert "Waiting for the first round" in said


async def test_before_the_node_answers_the_header_says_that_it_waits() -> None:
    async with app_over([]).run_test(size=NARROW) as pilot:
        assert "Waiting for the node" in (await settled(pilot))[0]


async def test_a_list_has_its_keys_again_after_the_terminal_was_too_small() -> None:
    async with app_over(SWARM).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        await settled(pilot)
        await pilot.resize_terminal(40, 10)
        await settled(pilot)
        await pilot.resize_terminal(*WIDE)
        await settled(pilot)
        assert pilot.app.focused is pilot.app.screen.query_one("#groups")


async def test_in_ascii_mode_nothing_else_reaches_the_terminal() -> None:
    """Titles, scrollbars, toasts, dialogs, the palette and what models write: all of it."""
    async with app_over(SWARM, glyphs="ascii").run_test(size=NARROW, notifications=True) as pilot:
        await settled(pilot)
        for key in ("1", "2", "3", "5", "question_mark", "escape", "z", "escape", "ctrl+p", "escape", "space"):
            await pilot.press(key)
            lines = await settled(pilot)
            assert "".join(lines).isascii(), (key, "\n".join(lines))
            assert {len(line) for line in lines} == {80}


async def test_dialogs_fit_into_a_small_terminal() -> None:
    async with app_over(SWARM).run_test(size=(60, 15)) as pilot:
        await settled(pilot)
        await pilot.press("q")
        lines = await settled(pilot)
        assert any(line.rstrip().endswith("╮") for line in lines), "\n".join(lines)


async def test_a_recording_offers_no_keys_that_need_a_node() -> None:
    app = SapoDashboard(ReplayFeed(SILO, speed=0))
    async with app.run_test(size=WIDE) as pilot:
        for key in "1235":
            await pilot.press(key)
            bar = (await settled(pilot))[-1]
            assert "space" not in bar
            assert "snooze" not in bar


async def test_the_log_is_searched() -> None:
    async with app_over(SILO).run_test(size=WIDE) as pilot:
        await pilot.press("5", "slash", *"held-out")
        lines = await settled(pilot)
        body = [line for line in lines if re.search(r"\d{4}-\d\d-\d\d", line)]
        assert body
        assert all("Held-out" in line for line in body)
        await pilot.press("escape")
        assert pilot.app.screen.query_one("#search", Input).value == ""


async def test_peer_names_are_shown_as_text_never_as_markup() -> None:
    async with app_over(SWARM).run_test(size=WIDE) as pilot:
        await pilot.press("2")
        assert any("[/bad] ·[31mred" in line for line in await settled(pilot))


async def test_ascii_glyphs_draw_the_whole_dashboard_in_ascii() -> None:
    async with app_over(SILO, glyphs="ascii").run_test(size=WIDE) as pilot:
        text = "\n".join(await settled(pilot))
        assert not re.search("[⠀-⣿╭╮╰╯│─━●○▶✓]", text), set(re.findall("[^\x00-\x7f]", text))


async def test_no_color_leaves_no_colour_and_everything_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_over(SWARM)
    async with app.run_test(size=WIDE) as pilot:
        text = "\n".join(await settled(pilot))
        assert app.no_color
        assert "external" in text
        assert "local" in text


@pytest.mark.parametrize("theme", ["sapo-light", "sapo-contrast", "ansi-dark", "nord", "no-such-theme"])
async def test_every_kind_of_theme_draws(theme: str) -> None:
    async with app_over(SWARM, theme=theme).run_test(size=WIDE) as pilot:
        assert any("Reward" in line for line in await settled(pilot))


async def test_no_footer_shows_more_than_eight_keys() -> None:
    app = app_over(SILO)
    async with app.run_test(size=(200, 50)) as pilot:
        for key in "1235":
            await pilot.press(key)
            await settled(pilot)
            assert len(app.screen.query_one(KeyBar).keys) <= MAX_KEYS


async def test_the_footer_works_with_the_mouse() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.click(KeyBar, offset=(3, 0))
        await settled(pilot)
        assert feed_of(app).commands == [("pause", {})]
