"""A recording in the dashboard: held, sought in both directions, faster and slower, from a place; and the tour."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fixtures.make_recordings import recording
from textual.pilot import Pilot

from sapo_desktop.commands.nodes import replay
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed, place_in
from sapo_desktop.dashboard.screens.help import HelpScreen
from sapo_desktop.dashboard.state import ReplayCaption
from sapo_desktop.errors import UsageError
from sapo_desktop.services.models.recording import load_tour
from sapo_swarm.events import LogLine, RoundFinished

ROOT = Path(__file__).resolve().parents[3]
SILO = list(recording("silo", 40, 7))
LENGTH = SILO[-1].time - SILO[0].time
ROUND_20 = next(event.time for event in SILO if isinstance(event, RoundFinished) and event.round == 19)


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def playing(feed: ReplayFeed) -> AsyncIterator[tuple[SapoDashboard, Pilot[object]]]:
    app = SapoDashboard(feed)
    async with app.run_test(size=(120, 36)) as pilot:
        yield app, pilot


def done_by(moment: float) -> int:
    """Rounds that are finished by then."""
    return sum(isinstance(event, RoundFinished) and event.time <= moment for event in SILO)


async def rounds(app: SapoDashboard, pilot: Pilot[object], wanted: int) -> str:
    """The header once so many rounds are told."""
    async with asyncio.timeout(20):
        while app.state.rounds != wanted:
            await pilot.pause(0.01)
    app.redraw()
    await pilot.pause()
    strip = app.screen._compositor.render_strips()[0]
    return "".join(segment.text for segment in strip)


async def test_it_begins_where_it_is_told_to_and_says_that_it_is_a_replay() -> None:
    feed = ReplayFeed(SILO, 1.0, place_in(SILO, "20"), clock=Clock())
    async with playing(feed) as (app, pilot):
        header = await rounds(app, pilot, 20)
        assert header.strip().startswith("REPLAY 1x ")
        assert "sapo-desktop" not in header


async def test_it_is_sought_in_both_directions_and_what_comes_later_is_forgotten() -> None:
    feed = ReplayFeed(SILO, 1.0, ROUND_20, clock=Clock())
    async with playing(feed) as (app, pilot):
        await rounds(app, pilot, 20)
        await pilot.press("right_square_bracket")
        assert done_by(feed.now()) > 20
        assert "REPLAY 1x" in await rounds(app, pilot, done_by(feed.now()))
        await pilot.press(*["left_square_bracket"] * 3)
        earlier = done_by(feed.now())
        assert 10 < earlier < 20
        await rounds(app, pilot, earlier)
        assert len(app.state.figures.reward_local) == earlier, "the chart has no point of a later round"
        await pilot.press("circumflex_accent")
        await rounds(app, pilot, 0)
        await pilot.press(*["right_square_bracket"] * 21)
        assert "REPLAY end 100 %" in await rounds(app, pilot, 40)


async def test_space_holds_it_and_the_header_does_not_claim_that_the_node_is_paused() -> None:
    clock = Clock()
    feed = ReplayFeed(SILO, 1.0, ROUND_20, clock=clock)
    async with playing(feed) as (app, pilot):
        await rounds(app, pilot, 20)
        await pilot.press("space")
        clock.seconds += LENGTH
        header = await rounds(app, pilot, 20)
        assert "REPLAY held" in header
        assert "Paused" not in header
        await pilot.press("space", "right_square_bracket")
        assert "REPLAY 1x" in await rounds(app, pilot, done_by(feed.now()))
        assert app.state.rounds > 20


async def test_at_the_end_space_begins_again() -> None:
    feed = ReplayFeed(SILO, 1.0, SILO[-1].time, clock=Clock())
    async with playing(feed) as (app, pilot):
        await rounds(app, pilot, 40)
        await pilot.press("space")
        await rounds(app, pilot, 0)
        assert not feed.held


async def test_it_goes_faster_and_slower_and_keeps_its_place() -> None:
    clock = Clock()
    feed = ReplayFeed(SILO, 20.0, ROUND_20, clock=clock)
    async with playing(feed) as (app, pilot):
        await rounds(app, pilot, 20)
        await pilot.press("full_stop")
        assert feed.speed == 50
        await pilot.press("comma", "comma")
        assert feed.speed == 10
        assert feed.now() == ROUND_20
        clock.seconds += 1.0
        assert feed.now() == ROUND_20 + 10
        await pilot.press(*["comma"] * 20)
        assert feed.speed == 0.25


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20", ROUND_20),
        ("50%", SILO[0].time + LENGTH / 2),
        ("90s", SILO[0].time + 90),
        ("1m", SILO[0].time + 60),
        ("2h", SILO[0].time + 7200),
        ("9999", SILO[-1].time),
    ],
)
def test_a_place_is_a_round_a_share_or_a_time(text: str, expected: float) -> None:
    assert place_in(SILO, text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "x", "-1", "5 %%", "1e9", "nan", "1" * 13])
def test_what_is_no_place_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="is no place in a recording"):
        place_in(SILO, text)


async def test_a_caption_is_shown_from_its_time_on_and_brings_its_screen() -> None:
    captions = [ReplayCaption(SILO[0].time, "the beginning"), ReplayCaption(ROUND_20, "a log of it", "log")]
    async with playing(ReplayFeed(SILO, 1.0, None, captions, Clock())) as (app, pilot):
        await rounds(app, pilot, 0)
        assert app.current_mode == "dashboard"
        await pilot.press("right_square_bracket")
        await rounds(app, pilot, 20)
        assert app.current_mode == "log"
        await pilot.press("1")
        await rounds(app, pilot, 20)
        assert app.current_mode == "dashboard", "after that the person looks where they want"
        await pilot.press("left_square_bracket")
        await rounds(app, pilot, 0)
        lines = ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]
        assert any("the beginning" in line for line in lines)


async def test_a_caption_of_another_screen_waits_until_the_help_is_closed() -> None:
    feed = ReplayFeed(SILO, 1.0, None, [ReplayCaption(ROUND_20, "a log of it", "log")], Clock())
    async with playing(feed) as (app, pilot):
        await rounds(app, pilot, 0)
        await pilot.press("question_mark")
        feed.seek(1)
        await rounds(app, pilot, 20)
        assert app.current_mode == "dashboard"
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await rounds(app, pilot, 20)
        assert app.current_mode == "log"


async def test_every_caption_of_the_tour_fits_and_names_a_screen_that_there_is() -> None:
    events, said = load_tour()
    assert [caption.round for caption in said] == sorted(caption.round for caption in said)
    places = [ReplayCaption(place_in(events, str(one.round)), one.text, one.screen) for one in said]
    assert len({place.time for place in places}) == len(places)
    assert places[0].time == events[0].time, "it speaks from its first second"
    assert max(len(one.text) for one in said) <= 3 * 74, "three lines of 80 columns"
    feed = ReplayFeed(events, 1.0, None, places, Clock())
    async with playing(feed) as (app, pilot):
        for place in places:
            while app.screen._caption != place.text:  # type: ignore[attr-defined]
                await pilot.press("right_square_bracket")
                app.redraw()
                await pilot.pause()
            assert place.screen in app.modes
            assert app.current_mode == place.screen


async def test_at_80_by_24_the_swarm_screen_of_the_tour_shows_a_peer() -> None:
    events, said = load_tour()
    places = [ReplayCaption(place_in(events, str(one.round)), one.text, one.screen) for one in said]
    app = SapoDashboard(ReplayFeed(events, 1.0, None, places, Clock()))
    shown = []
    async with app.run_test(size=(80, 24)) as pilot:
        for place in [place for place in places if place.screen == "swarm"]:
            while app.screen._caption != place.text:  # type: ignore[attr-defined]
                await pilot.press("right_square_bracket")
                app.redraw()
                await pilot.pause()
            shown.append(app.screen.query_one("#peers").scrollable_content_region.height)
    assert len(shown) == 2
    assert min(shown) >= 2, "the heading and a peer"


@pytest.mark.parametrize(
    ("recorded", "played"),
    [
        ((100, 101, 3700, 102, 103), (100, 101, 102, 102, 103)),
        ((100, 101, 3700, 3701, 102, 103), (100, 101, 101, 102, 102, 103)),
        ((100, 130, 160, 190, 220, 100, 130), (100, 130, 160, 190, 220, 220, 250)),
    ],
    ids=["one event", "several", "an hour lived twice"],
)
async def test_a_recording_whose_clock_went_back_an_hour_is_told_without_an_hours_wait(
    recorded: tuple[int, ...], played: tuple[int, ...]
) -> None:
    lines = [LogLine(time=float(time), level="info", text=str(time)) for time in recorded]
    clock = Clock()
    feed = ReplayFeed(lines, 1.0, clock=clock)
    stream = feed.events()
    for time in played:
        clock.seconds = time - played[0]
        async with asyncio.timeout(30):
            assert (await anext(stream)).time == time
    assert feed.badge == "REPLAY end 100 %"
    assert place_in(lines, "50%") == (played[0] + played[-1]) / 2


@pytest.mark.parametrize("verb", ["replay", "tour"])
def test_a_speed_that_is_none_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser, verb)
    with pytest.raises(SystemExit):
        parser.parse_args([*(["file"] if verb == "replay" else []), "--speed", "0"])
    assert "--speed" in capsys.readouterr().err


def test_the_pictures_are_made_by_one_command_and_are_as_it_makes_them() -> None:
    """Mend it with: python packaging/pictures.py"""
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "pictures.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
