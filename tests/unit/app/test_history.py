"""A run of any length on a chart: the beginning stays, time has gaps, what happened is marked, one crosshair reads it all."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.records import finished, opened
from tests.support.week_recording import START, blocks, reward, week

from sapo_desktop.dashboard.history.run import PAUSE_S, RoundClock, add_milestones
from sapo_desktop.dashboard.history.series import LEVEL, Series
from sapo_desktop.dashboard.look import UNICODE, draw_sparkline
from sapo_desktop.dashboard.screens.dashboard import milestone_marks, reward_lines
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.chart import at_crosshair, chart_legend, heldout_marks, pan_view, zoom_view
from sapo_desktop.dashboard.widgets.plot import ChartLine, ChartMark, ChartView, axis_for, axis_of, draw_plot
from sapo_swarm.events import Event, ExternalSwitched, StateChanged, Vitals

ROUNDS = 40_000


def fold(events: list[Event]) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


@pytest.fixture(scope="module")
def long_run() -> DashboardState:
    return fold(week(ROUNDS))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    if hasattr(time, "tzset"):
        time.tzset()


def rows(state: DashboardState, view: ChartView, width: int = 100, height: int = 12) -> list[str]:
    marks = [*heldout_marks(state.figures), *milestone_marks(state)]
    drawn = draw_plot(reward_lines(state), marks, view, width, height, UNICODE, state.figures.clock)
    return ["".join(text for text, _ in row) for row in drawn]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 10_000), st.booleans())
def test_whatever_its_length_a_series_begins_with_its_first_point_and_is_bounded(count: int, told: bool) -> None:
    made = Series()
    for first, size in blocks(count) if told else ((x, 1) for x in range(count)):
        made = made.append(first + size, 0.5, size)
    assert made.first_x == 1
    assert made.last_x == count
    assert len(made) <= 2 * LEVEL * (1 + max(count // LEVEL, 1).bit_length())
    assert made.at(1, 1) == 0.5
    assert sum(last - first + 1 for first, last, _ in made.buckets()) == count


def test_smallest_and_largest_values_survive_being_put_together() -> None:
    made = Series()
    for x in range(1, 20_001):
        made = made.append(x, 0.9 if x == 77 else 0.1 if x == 12_345 else 0.5)
    spread = made.spread(1, 20_000)
    assert spread is not None
    assert (spread.low, spread.high) == (0.1, 0.9)
    assert spread.mean == pytest.approx(0.5, abs=1e-3)
    recent = made.spread(19_900, 20_000)
    assert recent is not None
    assert (recent.low, recent.high) == (0.5, 0.5)


def test_going_back_far_past_what_was_put_together_goes_on_from_there() -> None:
    made = Series()
    for x in range(1, 20_001):
        made = made.append(x, 0.5)
    again = made.append(5000, 0.7)
    assert again.last_x == 5000
    assert again.at(5000, 1) == pytest.approx(0.7)
    for x in range(5001, 9000):
        again = again.append(x, 0.7)
    assert again.first_x == 1
    assert made.last_x == 20_000


def test_a_sparkline_of_more_values_than_cells_shows_the_mean_of_each_share() -> None:
    assert draw_sparkline([0.0, 2.0, None, 3.0, None, None], 3, UNICODE) == f"{UNICODE.bars[0]}{UNICODE.bars[-1]} "


def test_a_day_of_the_machine_s_figures_keeps_what_a_sparkline_shows() -> None:
    machine = Vitals(tokens_per_s=None, rounds_per_hour=None, memory=1, cpu_percent=2.0, celsius=None)
    figures = fold([msgspec.structs.replace(machine, time=START + second) for second in range(86_400)]).figures
    assert [len(kept) for kept in (figures.memory, figures.cpu, figures.celsius)] == [300] * 3


def test_a_week_is_drawn_from_round_one_with_its_newest_round_at_the_end(long_run: DashboardState) -> None:
    axis = rows(long_run, ChartView())[-1].split()
    assert axis[0] == "1"
    assert axis[-1] == f"{ROUNDS}"
    first = long_run.figures.reward_local.at(1, 1)
    assert first == pytest.approx(reward(0, ROUNDS), abs=0.01)


def test_in_time_there_is_a_gap_where_nothing_ran_and_in_rounds_there_is_none(long_run: DashboardState) -> None:
    state = long_run
    lines, clock = reward_lines(state), state.figures.clock
    assert len(clock.pauses) == 14
    assert all(end - start == pytest.approx(21_600, rel=0.05) for start, end in clock.pauses)
    timed = axis_for(lines, [], ChartView(timed=True), clock)
    plain = axis_for(lines, [], ChartView(), clock)
    assert timed is not None
    assert plain is not None
    idle = sum(span is None for span in timed.spans(280)) / 280
    assert idle == pytest.approx(0.5, abs=0.05), "half of the seven days was paused"
    assert None not in plain.spans(280)
    labels = rows(state, ChartView(timed=True))[-1].split()
    assert labels[::2] == ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon"]


def test_an_evaluation_between_two_rounds_is_no_pause() -> None:
    clock = RoundClock().finished(1, 1000.0, 5.0).worked(600.0).finished(2, 1610.0, 5.0)
    assert clock.pauses == ()
    clock = clock.finished(3, 1615.0 + PAUSE_S + 1, 5.0)
    assert clock.pauses == ((1610.0, 1610.0 + PAUSE_S + 1),)
    assert clock.paused_at(1650.0)
    assert not clock.paused_at(1609.0)
    assert clock.time_of(1) == 1000.0
    assert clock.round_at(1000.0) == pytest.approx(1.0)


def test_a_clock_that_was_set_back_keeps_the_order_of_rounds() -> None:
    clock = RoundClock().finished(1, 1000.0, 5.0).finished(2, 400.0, 5.0).finished(3, 1020.0, 5.0)
    times = [clock.time_of(number) for number in (1, 2, 3)]
    assert times == [1000.0, 1005.0, 1020.0]


def test_after_a_clock_was_set_back_two_hours_the_next_two_hours_of_rounds_have_two_hours_of_the_time_axis() -> None:
    clock = RoundClock()
    for number in range(1, 101):
        clock = clock.finished(number, 1e9 + 7200 + 10 * number, 10.0)
    for number in range(101, 821):
        clock = clock.finished(number, 1e9 + 10 * number, 10.0)
    times = [clock.time_of(number) or 0.0 for number in (100, 460, 820)]
    assert times[1] - times[0] == pytest.approx(3600, abs=60)
    assert times[2] - times[1] == pytest.approx(3600, abs=60)
    assert clock.pauses == ()
    clock = clock.finished(821, 1e9 + 8200 + 10_000, 10.0)
    assert clock.time_of(821) == 1e9 + 18_200, "a pause makes up for what it was ahead"


def test_very_many_pauses_leave_the_longest() -> None:
    clock = RoundClock()
    now = 0.0
    for number in range(1, 1001):
        now += 5000.0 if number == 500 else 200.0
        clock = clock.finished(number, now, 1.0)
    assert len(clock.pauses) <= 400
    assert max(end - start for start, end in clock.pauses) == 4999.0


def test_held_out_results_are_marks_with_intervals_that_do_not_cover_the_line(long_run: DashboardState) -> None:
    text = rows(long_run, ChartView())
    marks = [column for row in text for column, cell in enumerate(row) if cell == "◆"]
    assert len(marks) > 10
    assert min(b - a for a, b in zip(sorted(set(marks)), sorted(set(marks))[1:], strict=False)) >= 2
    assert any("┊" in row for row in text)
    assert text[-2].endswith("B"), "the best one is the newest"


def test_what_happened_is_a_letter_on_the_axis_and_a_word_in_the_legend() -> None:
    state = fold([opened(0), *(finished(number) for number in range(40))])
    joined = msgspec.structs.replace(opened(40), changed=("joined the swarm of friends", "temperature 1.0 -> 0.8"))
    back = ExternalSwitched(round=45, taking=False, by="tripwire", sentence="", restored=30)
    events: list[Event] = [joined, *(finished(number) for number in range(40, 60)), back]
    for event in [*events, StateChanged(time=60.0, state="paused", sentence="Paused")]:
        state = apply_event(state, event)
    assert {moment.letter for moment in state.moments} == {"J", "C", "R", "P"}
    axis = axis_for(reward_lines(state), [], ChartView())
    said = chart_legend(
        reward_lines(state), milestone_marks(state), ChartView(), axis, 200, UNICODE, lambda name: "red"
    ).plain
    assert said.endswith("R rolled back  J joined  C changed  P paused")
    assert "P" in rows(state, ChartView())[-2]
    narrow = chart_legend(
        reward_lines(state), milestone_marks(state), ChartView(), axis, 12, UNICODE, lambda name: "red"
    ).plain
    assert narrow == "⠤⠤ local", "names stay when figures and letters have to go"


def test_ten_thousand_pauses_keep_the_first_mark_and_the_newest_ones() -> None:
    known = ()
    for number in range(10_000):
        known = add_milestones(known, StateChanged(time=float(number), state="paused", sentence=""), number)
    assert len(known) < 800
    assert known[0].round == 0
    assert [moment.round for moment in known[-100:]] == list(range(9900, 10_000))


def test_the_crosshair_reads_round_time_mean_and_range(long_run: DashboardState) -> None:
    state, view = long_run, ChartView(timed=True, cross=START + 86_400)
    lines, clock = reward_lines(state), state.figures.clock
    axis = axis_for(lines, [], view, clock)
    assert axis is not None
    said = at_crosshair(lines, [], view, axis, 94, 200, UNICODE, lambda name: "red").plain
    number = int(said.split()[1].replace(",", ""))
    assert said.startswith(f"round {number:,} · ")
    mean = float(said.split("local ")[1].split()[0])
    assert mean == pytest.approx(reward(number, ROUNDS), abs=0.03)
    low, high = said.split("(")[1].rstrip(")").split(" to ")
    assert float(low) <= mean <= float(high)
    start, end = clock.pauses[3]
    said = at_crosshair(lines, [], ChartView(timed=True, cross=(start + end) / 2), axis, 94, 99, UNICODE, str).plain
    assert said.endswith("nothing ran")


def test_zooming_keeps_the_place_it_is_about_and_comes_back_to_all() -> None:
    line = ChartLine("local", Series().append(1, 0.1).append(1000, 0.2))
    view = ChartView()

    def axis(view: ChartView):  # type: ignore[no-untyped-def]
        found = axis_for([line], [], view)
        assert found is not None
        return found

    about = axis(view).place(0.25)
    for _ in range(3):
        view = zoom_view(view, axis(view), 1, 0.25)
        assert axis(view).place(0.25) == pytest.approx(about)
    left = pan_view(view, axis(view), -0.5)
    assert axis(left).last < axis(view).last
    assert axis(pan_view(view, axis(view), -50)).first == 1, "nothing is before the first round"
    right = pan_view(view, axis(view), 50)
    assert right.end is None, "at the newest round it follows what comes"
    assert axis(right).last == 1000
    for _ in range(4):
        view = zoom_view(view, axis(view), -1, None)
    assert (view.window, view.end) == (0, None)


@pytest.mark.parametrize(
    ("clock", "least"), [(None, 10), (RoundClock().finished(1, START, 9).finished(1000, START + 99_999.3, 9), 60)]
)
def test_at_the_smallest_window_one_more_plus_changes_nothing(clock: RoundClock | None, least: int) -> None:
    for share in (None, 0.3):
        view, seen, before = ChartView(timed=clock is not None), 1e9, None
        while seen > least * 1.001:
            axis = axis_of([(1.0, 1000.0)], view, clock)
            assert axis is not None
            before, seen, view = view, axis.last - axis.first, zoom_view(view, axis, 1, share)
        assert seen == pytest.approx(least)
        assert view == before


@given(
    st.integers(1, 120),
    st.integers(1, 30),
    st.floats(0, 1e7),
    st.one_of(st.none(), st.floats(0, 2e9)),
    st.booleans(),
    st.booleans(),
)
def test_every_view_of_every_size_fills_its_rows(
    width: int, height: int, window: float, end: float | None, timed: bool, band: bool
) -> None:
    clock, line = RoundClock(), Series()
    for number in range(1, 60):
        clock = clock.finished(number, 1e9 + 40 * number + (4000 if number > 30 else 0), 30)
        line = line.append(number, number / 60)
    view = ChartView(window, 5, end, timed, band, cross=end)
    marks = [ChartMark(3, 0.5, 0.4, 0.6), ChartMark(4, None, letter="P", time=1e9)]
    drawn = draw_plot([ChartLine("local", line)], marks, view, width, height, UNICODE, clock)
    assert len(drawn) in (0, height)
    assert {sum(len(text) for text, _ in row) for row in drawn} <= {width}
