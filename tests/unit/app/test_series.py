"""The dashboard's memory: append-only, bounded, and old values keep what they saw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_desktop.dashboard.history.series import LEVEL, BoundedHistory, Series

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1, width=32)), max_size=80)


def series(values: list[float | None]) -> Series:
    made = Series()
    for x, value in enumerate(values):
        made = made.append(x, value)
    return made


@given(VALUES, st.integers(1, 30))
def test_a_moving_mean_is_the_mean_of_the_values_in_its_window(values: list[float | None], smooth: int) -> None:
    made = series(values)
    for index in range(len(values)):
        window = [v for v in values[max(0, index + 1 - smooth) : index + 1] if v is not None]
        expected = sum(window) / len(window) if window else None
        assert made.mean(index, smooth) == (pytest.approx(expected, abs=1e-6) if window else None)


@given(VALUES, st.floats(0, 1))
def test_appending_never_changes_an_older_series(values: list[float | None], more: float) -> None:
    old = series(values)
    before = [old.mean(i, 3) for i in range(len(old))]
    one, two = old.append(len(values), more), old.append(len(values), 1 - more)
    assert [old.mean(i, 3) for i in range(len(old))] == before
    assert one.mean(len(values), 1) == pytest.approx(more)
    assert two.mean(len(values), 1) == pytest.approx(1 - more)


def test_ten_thousand_rounds_fit_into_a_bounded_memory_and_keep_their_mean() -> None:
    made = Series()
    for x in range(10_000):
        made = made.append(x, float(x % 2))
    assert len(made) <= 12 * LEVEL
    assert made.mean(len(made) - 1, 20_000) == pytest.approx(0.5, abs=1e-3)
    assert made.at(9_998.5, 1) == pytest.approx(0.5)


def test_a_round_that_is_done_again_after_a_crash_replaces_the_lost_one() -> None:
    made = series([0.1, 0.2, 0.3]).append(1, 0.9)
    assert len(made) == 2
    assert made.at(1, 1) == pytest.approx(0.9)
    assert made.last_x == 1


def test_between_two_rounds_the_line_is_straight_and_outside_there_is_none() -> None:
    made = series([0.0, 1.0])
    assert made.at(0.25, 1) == pytest.approx(0.25)
    assert made.at(-0.1, 1) is None
    assert made.at(1.1, 1) is None


@given(st.lists(st.integers(), max_size=60), st.integers(1, 12))
def test_a_trail_holds_the_newest_items_in_order(items: list[int], bound: int) -> None:
    trail: BoundedHistory[int] = BoundedHistory(bound)
    for item in items:
        trail = trail.append(item)
    assert list(trail) == items[-bound:]
    assert trail.newest(3) == items[-bound:][::-1][:3]
    assert trail.last == (items[-1] if items else None)


def test_an_older_trail_does_not_see_what_was_added_to_a_newer_one() -> None:
    old: BoundedHistory[str] = BoundedHistory(4).append("a")
    assert list(old.append("b")) == ["a", "b"]
    assert list(old.append("c")) == ["a", "c"]
    assert list(old) == ["a"]
