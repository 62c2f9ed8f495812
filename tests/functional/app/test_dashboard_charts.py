"""The charts of the dashboard by keys and mouse: they look at the same part of the run."""

from __future__ import annotations

import re

import pytest
from tests.support.scripted_feed import NARROW, SILO, SWARM, WIDE, app_over, settled
from textual import events

from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.frame import KeyBar
from sapo_swarm.events import StateChanged


async def test_the_keys_of_the_charts_look_at_the_same_part_of_both() -> None:
    app = app_over(SWARM)
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot)
        reward, share = (app.screen.query_one(name, Chart) for name in ("#reward", "#share"))
        await pilot.press("X", "left", "left")
        text = "\n".join(await settled(pilot))
        assert reward.view.cross == share.view.cross is not None
        assert text.count("round 29") == 2, "both charts read the same round"
        await pilot.press("plus", "less_than_sign")
        assert "11 to 26" in str(reward.border_title), "half of the rounds, a quarter of the window earlier"
        assert reward.view.end is not None
        await pilot.press("X", "equals_sign", "T")
        lines = await settled(pilot)
        assert "\n".join(lines).count("all, in time") == 2
        assert any(re.search(r"\d\d:\d\d", line) for line in lines[10:25])
        await pilot.press("b")
        assert reward.view.band
        assert share.view.band


async def test_the_mouse_points_zooms_and_drags_on_all_charts() -> None:
    app = app_over(SILO)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        reward, share = (app.screen.query_one(name, Chart) for name in ("#reward", "#share"))
        await pilot.hover(Chart, offset=(30, 5))
        await settled(pilot)
        assert reward.view.cross == share.view.cross is not None
        at, axis = reward.view.cross, reward.axis
        assert axis is not None
        assert at is not None
        reward.post_message(Chart.Wheeled(1, axis.share(at)))
        await settled(pilot)
        nearer = reward.axis
        assert nearer is not None
        assert nearer.last - nearer.first < axis.last - axis.first
        assert nearer.share(at) == pytest.approx(axis.share(at)), "what is under the pointer stays there"
        await pilot.mouse_down(Chart, offset=(20, 5))
        await pilot._post_mouse_events([events.MouseMove], Chart, offset=(26, 5), button=1)
        await pilot.mouse_up(Chart, offset=(26, 5))
        await settled(pilot)
        dragged = reward.axis
        assert dragged is not None
        assert dragged.first < nearer.first
        await pilot.hover(KeyBar)
        await settled(pilot)
        assert reward.view.cross is None


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
        assert "mean of 50 · last 10" in lines[1]
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


async def test_the_letters_below_the_charts_are_explained_on_a_narrow_screen() -> None:
    app = app_over([*SILO, StateChanged(time=SILO[-1].time, state="paused", sentence="Paused", reason="person")])
    async with app.run_test(size=NARROW) as pilot:
        assert any("In the charts: B best · S first solved · P paused" in line for line in await settled(pilot))
