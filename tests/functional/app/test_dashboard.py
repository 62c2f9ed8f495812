"""The dashboard under a pilot: every screen, every key, at the smallest and at a wide size."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from tests.fixtures.make_recordings import recording
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ReplayFeed
from sapo_desktop.dashboard.messages import Link
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.rollouts import RolloutsScreen
from sapo_desktop.dashboard.state import apply
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.keybar import MAX_KEYS, KeyBar
from sapo_desktop.errors import CommandFailed
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_swarm.events import Event, RunStarted, StateChanged

SILO = list(recording("silo", 40, 7))
SWARM = list(recording("swarm", 30, 11))
NARROW, WIDE = (80, 24), (120, 36)


@dataclass
class ScriptedFeed:
    """A feed with a node's manners: tells a list of events and keeps the commands it is given."""

    script: list[Event | Link]
    controls: bool = True
    commands: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    refuses: str = ""

    async def events(self) -> AsyncIterator[Event | Link]:
        for event in self.script:
            yield event

    async def command(self, verb: str, **body: float) -> None:
        if self.refuses:
            raise CommandFailed(self.refuses)
        self.commands.append((verb, body))

    def describe(self) -> str:
        return "a script"

    def now(self) -> float:
        return max((event.time for event in self.script), default=0.0)


def app_over(events: list[Event], **options: object) -> SapoDashboard:
    return SapoDashboard(ScriptedFeed(list(events)), **options)  # type: ignore[arg-type]


async def settled(pilot: Pilot[object]) -> list[str]:
    """The screen as lines, once everything that is under way has happened."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    while not app.begun:
        await pilot.pause()
    await app.workers.wait_for_complete()
    app.redraw()
    await pilot.pause()
    await pilot.pause()
    return ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]


def feed_of(app: SapoDashboard) -> ScriptedFeed:
    assert isinstance(app.feed, ScriptedFeed)
    return app.feed


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
        "1 2 3 t o w slash a enter escape down down home 5 slash b enter escape 4 6 tab up left right 1"
    )
    async with app_over(SWARM).run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press(*keys.split())
        assert pilot.app.is_running
        await pilot.press("q")
        lines = await settled(pilot)
        assert any("Leave the dashboard?" in line for line in lines)


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
        assert "space resume" in lines[-1]
        await pilot.press("space")
        await settled(pilot)
        assert feed_of(app).commands == [("resume", {})]


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
    feed = ScriptedFeed([*SILO, last, Link(False, "The node went away", last.time)])
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
    feed = ScriptedFeed([*SILO, last, Link(False, "The node went away", last.time)])
    app = SapoDashboard(feed, start=lambda given: None)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == "stop"


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


async def test_a_frozen_chart_stands_still_while_the_state_goes_on() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("f")
        chart = app.screen.query_one("#reward", Chart)
        before = [chart.render_line(y).text for y in range(chart.size.height)]
        app.state = type(app.state)()
        lines = await settled(pilot)
        assert [chart.render_line(y).text for y in range(chart.size.height)] == before
        assert any("FROZEN" in line for line in lines)


async def test_an_unchanged_state_repaints_no_chart() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        chart = app.screen.query_one("#reward", Chart)
        strips = chart._strips
        app.redraw()
        assert chart._strips is strips


async def test_window_and_smoothing_change_what_the_title_says() -> None:
    async with app_over(SILO).run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("plus", "plus", "s")
        lines = await settled(pilot)
        assert "mean of 50 · last 600" in lines[1]
        await pilot.press("equals_sign")
        assert "all rounds" in (await settled(pilot))[1]


async def test_expanding_gives_the_whole_body_to_one_chart() -> None:
    async with app_over(SILO).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("e")
        lines = await settled(pilot)
        assert not any("Held-out pass@1" in line for line in lines)
        assert len(pilot.app.screen.query_one("#reward", Chart)._strips) == 20
        await pilot.press("e", "e")
        assert any("Held-out pass@1" in line for line in await settled(pilot))


async def test_rollouts_are_filtered_by_task_source_reward_and_text() -> None:
    async with app_over(SWARM).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        await settled(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, RolloutsScreen)
        everything = len(screen.listed)
        await pilot.press("o")
        await settled(pilot)
        assert {event.group.source for event in screen.listed} == {"own"}
        await pilot.press("o")
        await settled(pilot)
        assert {event.group.source for event in screen.listed} == {"external"}
        await pilot.press("escape", "w", "w")
        await settled(pilot)
        assert all(event.group.nonzero_advantage for event in screen.listed)
        await pilot.press("escape", "t")
        await settled(pilot)
        assert len({event.group.question.ref.dataset for event in screen.listed}) == 1
        await pilot.press("escape")
        await settled(pilot)
        assert len(screen.listed) == everything
        await pilot.press("slash", *"53 +")
        await settled(pilot)
        assert len(screen.listed) < everything
        assert all("53 +" in event.group.question.prompt for event in screen.listed)


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


async def test_browsing_down_holds_the_list_still_and_home_catches_up() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("3")
        await settled(pilot)
        await pilot.press("down", "down")
        screen = app.screen
        assert isinstance(screen, RolloutsScreen)
        top = screen.listed[0]
        for event in recording("silo", 3, 12):
            app.state = apply(app.state, event) if not isinstance(event, RunStarted) else app.state
        lines = await settled(pilot)
        assert screen.listed[0] is top
        assert any("newer ones: Home" in line for line in lines)
        await pilot.press("home")
        await settled(pilot)
        assert screen.listed[0] is not top
        assert screen.query_one("#groups", OptionList).highlighted == 0


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


async def questions(pilot: Pilot[object]) -> None:
    """Wait for the first questions: they come after the first frame."""
    while not isinstance(pilot.app.screen, FirstRunScreen):
        await pilot.pause()


async def test_the_first_run_starts_with_its_defaults_on_enter() -> None:
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("enter")
        lines = await settled(pilot)
        assert any("Reward" in line for line in lines)
    assert answers == [FirstRunAnswers()]


async def test_escape_skips_the_questions() -> None:
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("down", "right", "escape")
        await settled(pilot)
    assert answers == [FirstRunAnswers(skipped=True)]


async def test_a_swarm_needs_an_invite_and_keeps_it() -> None:
    invite = f"sapo://127.0.0.1:7471/#t={'5' * 32}&s={'k' * 16}"
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("right", "enter")
        lines = ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]
        assert any("A swarm needs an invite" in line for line in lines)
        await pilot.press(*"abc", "enter")
        assert answers == [], "what is no invite does not start a node"
        app.screen.query_one("#invite", Input).value = invite
        await pilot.press("enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(mode="swarm", invite=invite)]


async def test_the_first_questions_say_how_fast_the_answers_are_and_stop_measuring_when_they_end() -> None:
    asked: list[tuple[str, str]] = []
    ended: list[str] = []

    async def measure(hardware: str, model: str) -> str:
        asked.append((hardware, model))
        if model == "b":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(model)
        return "9,800 tok/s written, 4,000 trained; a round needs 0.5 GiB"

    info = FirstRunInfo(models=(("a", "small"), ("b", "large")), measure=measure)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        speed = app.screen.query_one("#speed", Static)
        while "9,800 tok/s" not in str(speed.content):
            await pilot.pause()
        app.screen.query_one("#model").focus()
        await pilot.press("right")
        while len(asked) < 2:
            await pilot.pause()
        await pilot.press("enter")
        await settled(pilot)
    assert asked == [("auto", "a"), ("auto", "b")]
    assert ended == ["b"]


async def test_the_first_questions_stay_whatever_keys_are_pressed() -> None:
    """The dashboard's own keys, digits for its screens among them, do nothing there."""
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: None)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press(*"12345qdzrF", "space", "question_mark")
        assert isinstance(app.screen, FirstRunScreen)
        assert len(app.screen_stack) == 2


async def test_an_invite_that_is_pasted_anywhere_chooses_the_swarm() -> None:
    invite = f"sapo://127.0.0.1:7471/#t={'5' * 32}&s={'k' * 16}"
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        app.post_message(events.Paste("no invite"))
        app.post_message(events.Paste(f"{invite}\n"))
        while app.screen.query_one("#invite", Input).value != invite:
            await pilot.pause()
        await pilot.press("enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(mode="swarm", invite=invite)]


async def test_a_start_that_takes_a_while_does_not_hold_the_screen() -> None:
    seen: list[FirstRunAnswers | None] = []

    async def start(answers: FirstRunAnswers | None) -> None:
        seen.append(answers)

    app = SapoDashboard(ScriptedFeed(list(SILO)), start=start)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
    assert seen == [None]
