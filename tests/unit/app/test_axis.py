"""Ticks of a time axis where days have 23 or 25 hours, and a computer that goes to another time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from sapo_desktop.dashboard import look
from sapo_desktop.dashboard.history.run import RoundClock
from sapo_desktop.dashboard.widgets.plot import Axis, axis_ticks, format_weekday_time
from sapo_swarm.node.clock import local_time

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="zones are set as on Unix")


@pytest.fixture(autouse=True)
def the_zone_of_before() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        yield
    time.tzset()


def at(zone: str, *when: int) -> datetime:
    return datetime(*when, tzinfo=ZoneInfo(zone))  # type: ignore[arg-type,misc]  # year, month, day, hour


def ticks_in(zone: str, first: datetime, last: datetime, columns: int, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    ends = first.timestamp(), last.timestamp()
    return axis_ticks(Axis(*ends, ends, RoundClock()), columns)


@pytest.mark.parametrize(
    ("zone", "begin"),
    [
        ("Europe/Berlin", (2025, 10, 20)),
        ("Europe/Berlin", (2025, 3, 24)),
        ("America/New_York", (2025, 3, 3)),
        ("Australia/Lord_Howe", (2025, 3, 31)),
        ("Africa/Cairo", (2025, 4, 20)),  # there the missing hour is the first of its day
    ],
)
def test_every_day_is_named_once_and_at_its_own_midnight_after_the_clocks_were_changed(
    zone: str, begin: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [at(zone, *begin) + timedelta(days=day) for day in range(12)]
    found = ticks_in(zone, days[0] - timedelta(hours=1), days[-1] + timedelta(hours=1), 160, monkeypatch)
    assert [label for _, label in found] == [f"{day:%a} {day.day}" for day in days]
    assert [place for place, _ in found] == pytest.approx([day.timestamp() for day in days], abs=3600)
    if zone != "Africa/Cairo":
        assert [place for place, _ in found] == [day.timestamp() for day in days]


def test_hours_stay_round_after_the_clocks_were_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = "Europe/Berlin"
    found = ticks_in(zone, at(zone, 2025, 10, 25, 17), at(zone, 2025, 10, 26, 13), 60, monkeypatch)
    assert [label for _, label in found] == ["18:00", "Sun 26", "06:00", "12:00"]


def test_an_hour_that_comes_twice_has_its_ticks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = "Europe/Berlin"
    found = ticks_in(zone, at(zone, 2025, 10, 26, 1), at(zone, 2025, 10, 26, 4), 60, monkeypatch)
    assert [label for _, label in found] == ["01:00", "02:00", "02:00", "03:00", "04:00"]


def test_after_the_zone_changes_a_log_line_and_a_chart_name_the_hour_that_the_node_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time.tzset()
    moment = at("UTC", 2026, 11, 27, 20).timestamp()
    assert (look.format_date_time(moment), format_weekday_time(moment)) == ("2026-11-27 20:00:00", "Fri 20:00")
    for zone, wall in (("Asia/Tokyo", "2026-11-28 05:00:00"), ("America/Lima", "2026-11-27 15:00:00")):
        monkeypatch.setenv("TZ", zone)
        assert look.format_date_time(moment) == wall
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert format_weekday_time(moment) == "Sat 05:00"
    assert time.strftime("%H:%M", local_time(moment)) == "05:00"
