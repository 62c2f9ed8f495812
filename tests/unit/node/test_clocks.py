"""Suspends, clocks that are set, time zones and daylight saving: hours follow the wall clock, durations the steady one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.node.clock import local_time, steady_seconds, week_minute
from sapo_swarm.node.governor.rules import (
    GovernorState,
    MachineMonitor,
    MachineReadings,
    ResourceLimits,
    ThrottleLevel,
    advance_rules,
)
from sapo_swarm.node.governor.run_control import RunRequests, apply_command, find_obstacle

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="zones are set as on Unix")
NIGHTS = ResourceLimits(schedule="22:00-07:00")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
"""With an hour of daylight saving, half an hour of it, an odd offset, and a day that never was."""


@pytest.fixture(autouse=True)
def the_zone_of_before() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        yield
    time.tzset()


def at(zone: str, *when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[arg-type,misc]  # year, month, day, hour, minute


def nights(zone: str, begin: float, minutes: int) -> list[tuple[str, bool]]:
    """Local times at which the hold for hours changes, and whether it holds then, seen minute by minute."""
    state, seen = GovernorState(), list[tuple[str, bool]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        for minute in range(minutes):
            wall = begin + 60 * minute
            state = advance_rules(state, NIGHTS, MachineReadings(week_minute=week_minute(wall)), 60.0 * minute)
            held = bool(state.holds)
            if not seen or held != seen[-1][1]:
                seen.append((time.strftime("%a %H:%M", local_time(wall)), held))
    return seen


def test_hours_are_kept_on_the_days_on_which_the_clock_changes() -> None:
    berlin = "Europe/Berlin"
    for month, day in ((3, 29), (10, 25)):
        seen = nights(berlin, at(berlin, 2026, month, day - 1, 12, 0), 36 * 60)
        assert seen == [("Sat 12:00", True), ("Sat 22:00", False), ("Sun 07:00", True), ("Sun 22:00", False)]


@given(st.sampled_from(ZONES), st.integers(0, 4 * 365 * 24 * 60))
def test_in_every_zone_and_at_every_moment_it_works_exactly_in_its_hours(zone: str, minute: int) -> None:
    wall = at("UTC", 2024, 1, 1, 0, 0) + 60.0 * minute
    hour = datetime.fromtimestamp(wall, ZoneInfo(zone)).hour
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        state = advance_rules(GovernorState(), NIGHTS, MachineReadings(week_minute=week_minute(wall)), 0.0)
    assert bool(state.holds) == (7 <= hour < 22)


def test_a_computer_that_travels_is_in_its_new_zone_without_a_new_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, week = MachineMonitor(tmp_path), 7 * 24 * 60
    before = machine.readings().week_minute
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    after = machine.readings().week_minute
    assert before is not None
    assert after is not None
    assert (after - before) % week in (345, 346)


@given(st.lists(st.floats(-7200, 7200), min_size=1, max_size=30))
def test_however_the_wall_clock_is_set_an_hour_lasts_an_hour(jumps: list[float]) -> None:
    """It is said with the wall clock's time of its end, and kept by the steady one."""
    requests, wall, now = apply_command(RunRequests(), "snooze", 3600, 1000.0), at("UTC", 2026, 11, 24, 12, 0), 1000.0
    for jump in jumps:
        now += 3600 / (len(jumps) + 1)
        wall += jump + 3600 / (len(jumps) + 1)
        held = find_obstacle(requests, now, wall)
        assert held is not None
        end = time.strftime("%H:%M", local_time(wall + 4600.0 - now))
        assert end in held[1]
    assert find_obstacle(requests, 4600.1, wall) is None


def test_a_clock_that_is_set_back_and_forth_turns_no_rule_more_than_once_a_dwell() -> None:
    state, turns = GovernorState(), list[float]()
    for second in range(600):
        hour = 6 if second % 2 else 8
        before = bool(state.holds)
        state = advance_rules(state, NIGHTS, MachineReadings(week_minute=60 * hour), float(second))
        if bool(state.holds) != before:
            turns.append(second)
    assert all(b - a >= 20 for a, b in itertools.pairwise(turns))


def test_after_a_suspend_the_night_is_over_at_once_and_the_steady_clock_slept_none_of_it() -> None:
    state = advance_rules(GovernorState(), NIGHTS, MachineReadings(week_minute=60 * 23), 0.0)
    assert state.holds == ()
    state = advance_rules(state, NIGHTS, MachineReadings(week_minute=60 * 33), 36_000.0)
    assert [hold.level for hold in state.holds] == [ThrottleLevel.PAUSE]
    anyway = apply_command(RunRequests(holds=state.holds), "run_anyway", 3600, 36_000.0)
    assert find_obstacle(anyway, 36_100.0, 0.0) is None
    assert find_obstacle(anyway, 36_000.0 + 8 * 3600, 0.0) is not None, "an hour is over after a sleep of eight"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux' clock that counts sleep")
def test_the_steady_clock_counts_sleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = steady_seconds()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)
