"""The day's data: what is counted, when it holds, and what begins the count anew."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_desktop.services.machine import doctor
from sapo_swarm.node.governor.rules import (
    MB,
    DataCap,
    DataDay,
    ResourceLimits,
    add_data_usage,
    advance_data_day,
    data_cap_hold,
)

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
DAY = 86400.0
CAP = ResourceLimits(max_network_mb_a_day=1)


@pytest.fixture(autouse=True)
def in_greenwich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def test_it_holds_before_another_exchange_would_go_beyond_the_cap_and_says_what_lifts_it(tmp_path: Path) -> None:
    cap = DataCap(tmp_path / "network.json", lambda: CAP, lambda: NOON)
    assert cap.count(0) is None
    assert cap.count(400_000) is None
    held = cap.count(800_000)
    assert held is not None, "a third of 400,000 would be too much"
    assert held.sentence == (
        "Paused: 0.8 of 1 MB of today's data are used · goes on after midnight, or with a larger limits.max_network_mb_a_day"
    )


def test_a_new_session_of_the_day_goes_on_counting_and_a_new_day_begins_anew(tmp_path: Path) -> None:
    path, now = tmp_path / "data" / "network.json", NOON
    assert DataCap(path, lambda: CAP, lambda: now).count(900_000) is not None
    fresh = DataCap(path, lambda: CAP, lambda: now)
    assert fresh.count(0) is not None
    assert fresh.today.used == 900_000
    now = NOON + DAY / 2
    assert fresh.count(0) is None
    assert fresh.count(100) is None
    assert DataCap(path, lambda: CAP, lambda: now).today == DataDay("2026-11-25", 100, 100)


def test_no_trip_across_midnight_and_back_begins_the_count_anew(tmp_path: Path) -> None:
    now = NOON
    cap = DataCap(tmp_path / "n.json", lambda: CAP, lambda: now)
    assert cap.count(900_000) is not None
    now = NOON - DAY
    assert cap.count(900_000) is not None, "a time zone to the west, where it is yesterday"
    now = NOON - 40 * DAY
    assert cap.count(900_000) is None, "a clock that was wrong by a month and was set"


def test_a_changed_limit_counts_at_once_and_without_one_nothing_holds(tmp_path: Path) -> None:
    limits = CAP
    cap = DataCap(tmp_path / "n.json", lambda: limits, lambda: NOON)
    assert cap.count(2 * MB) is not None
    limits = ResourceLimits(max_network_mb_a_day=10)
    assert cap.count(2 * MB) is None
    limits = ResourceLimits()
    assert cap.count(10**12) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"used": "x"}', b"[]", b'{"date": 3}'])
def test_a_damaged_count_begins_anew_and_a_disk_that_refuses_it_ends_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    path.write_bytes(content)
    cap = DataCap(path, lambda: CAP, lambda: NOON)
    assert cap.today == DataDay("2026-11-24")
    (tmp_path / "file").touch()
    refused = DataCap(tmp_path / "file" / "n.json", lambda: CAP, lambda: NOON)
    assert refused.count(2 * MB) is not None


@given(st.lists(st.integers(0, 400_000), max_size=60), st.floats(0.1, 5))
def test_never_more_than_the_cap_and_one_exchange_larger_than_all_before_go_over_the_network(
    sizes: list[int], cap: float
) -> None:
    day, limits, largest = DataDay("2026-11-24"), ResourceLimits(max_network_mb_a_day=cap), 0
    for size in sizes:
        if data_cap_hold(day, limits) is None:
            day, largest = add_data_usage(day, size), max(largest, size)
    assert day.used <= cap * MB + largest
    assert advance_data_day(day, "2026-11-24") == day
    assert data_cap_hold(advance_data_day(day, "2026-11-25"), limits) is None


def test_the_doctor_tells_what_of_the_day_is_used(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    assert doctor.data_cap_finding(path, ResourceLimits()).text == "0.0 MB exchanged with swarms today, no cap"
    DataCap(path, ResourceLimits).count(1_500_000)
    assert (
        doctor.data_cap_finding(path, ResourceLimits(max_network_mb_a_day=20)).text
        == "1.5 of 20 MB exchanged with swarms today"
    )
    held = doctor.data_cap_finding(path, CAP)
    assert held.verdict == "note"
    assert held.text.startswith("1.5 of 1 MB of today's data are used: no exchange with a swarm until after midnight")
