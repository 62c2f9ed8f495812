"""Hours by weekday, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.node.governor.rules import (
    DAY_MINUTES,
    DAYS,
    WEEK_MINUTES,
    format_week_minute,
    minutes_until_open,
    parse_schedule,
)


def at(text: str) -> int:
    """Minute of the week of "Mon 18:00"."""
    day, clock = text.lower().split()
    hours, minutes = clock.split(":")
    return DAYS.index(day) * DAY_MINUTES + int(hours) * 60 + int(minutes)


@pytest.mark.parametrize(
    ("text", "moment", "until"),
    [
        ("", "Wed 12:00", None),
        ("22:00-07:00", "Wed 23:59", None),
        ("22:00-07:00", "Wed 06:59", None),
        ("22:00-07:00", "Wed 07:00", "Wed 22:00"),
        ("22:00-07:00", "Mon 00:00", None),
        ("mon-fri 18:00-08:00, sat-sun", "Mon 07:00", "Mon 18:00"),
        ("mon-fri 18:00-08:00, sat-sun", "Sat 07:00", None),
        ("mon-fri 18:00-08:00, sat-sun", "Sun 23:59", None),
        ("MON-FRI 18:00-08:00", "Sat 08:00", "Mon 18:00"),
        ("fri-mon 10:00-11:00", "Tue 10:30", "Fri 10:00"),
        ("fri-mon 10:00-11:00", "Sun 10:30", None),
        ("wed", "Thu 00:00", "Wed 00:00"),
        ("sun 22:00-24:00", "Sun 23:59", None),
        ("sun 22:00-24:00", "Mon 00:00", "Sun 22:00"),
        ("00:00-24:00", "Mon 00:00", None),
    ],
)
def test_a_schedule_means_what_it_says(text: str, moment: str, until: str | None) -> None:
    wait = minutes_until_open(parse_schedule(text), at(moment))
    assert (format_week_minute(at(moment) + wait) if wait else None) == until


@pytest.mark.parametrize(
    "text", ["always", "mon-fun", "25:00-26:00", "8-17", "mon 10:61-11:00", "mon, tue x", "-", "24:01-25:00"]
)
def test_what_is_no_schedule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as: mon-fri 18:00-08:00, sat-sun"):
        parse_schedule(text)


@given(
    st.sampled_from(["22:00-07:00", "mon", "tue-thu 09:00-17:30, sun 00:00-00:01"]), st.integers(0, WEEK_MINUTES - 1)
)
def test_after_the_wait_it_is_open_and_not_a_minute_before(text: str, minute: int) -> None:
    windows = parse_schedule(text)
    wait = minutes_until_open(windows, minute)
    assert minutes_until_open(windows, (minute + wait) % WEEK_MINUTES) == 0
    assert all(minutes_until_open(windows, (minute + early) % WEEK_MINUTES) for early in range(0, wait, 97))
