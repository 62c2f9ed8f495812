"""Hours by weekday, written as people write them:

always            the empty text
22:00-07:00       every night
mon-fri 18:00-08:00, sat-sun
                  nights of working days (the one after Friday too), whole weekends"""

from __future__ import annotations

import re
from functools import lru_cache

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
Window = tuple[int, int]
"""First minute of the week (Monday 00:00 is 0), and how many minutes from there."""

_RULE = re.compile(
    r"(?:(?P<day>[a-z]{3})(?:-(?P<last>[a-z]{3}))?)?\s*(?:(?P<begin>\d{1,2}:\d\d)-(?P<end>\d{1,2}:\d\d))?"
)
_HOW = "Write hours by weekday, such as: mon-fri 18:00-08:00, sat-sun"


@lru_cache(16)
def parse_schedule(text: str) -> tuple[Window, ...]:
    """The windows in which work is allowed; () for always. Raises ValueError with a sentence that says how to write it."""
    rules = [rule.strip() for rule in text.lower().split(",")]
    return tuple(window for rule in rules if rule for window in _windows(rule))


def _windows(rule: str) -> list[Window]:
    found = _RULE.fullmatch(rule)
    if found is None or not rule:
        raise ValueError(f"{rule!r} is no schedule. {_HOW}")
    first = _day(found["day"] or DAYS[0], rule)
    last = _day(found["last"] or found["day"] or DAYS[-1], rule)
    days = range(first, first + 1 + (last - first) % 7)
    begin, end = (_minute(found["begin"], rule), _minute(found["end"], rule)) if found["begin"] else (0, DAY_MINUTES)
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    return [(day % 7 * DAY_MINUTES + begin, length) for day in days]


def _day(word: str, rule: str) -> int:
    if word not in DAYS:
        raise ValueError(f"{word!r} in {rule!r} is no weekday. {_HOW}")
    return DAYS.index(word)


def _minute(clock: str, rule: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"{clock} in {rule!r} is no time of day. {_HOW}")
    return hours * 60 + minutes


def opens(windows: tuple[Window, ...], minute: int) -> int:
    """Minutes of the week until work is allowed: 0 when it is now. minute: since Monday 00:00, local time."""
    if not windows or any((minute - start) % WEEK_MINUTES < length for start, length in windows):
        return 0
    return min((start - minute) % WEEK_MINUTES for start, _ in windows)


def spoken(minute: int) -> str:
    """A minute of the week as people say it: Mon 18:00."""
    day, rest = divmod(minute % WEEK_MINUTES, DAY_MINUTES)
    return f"{DAYS[day].capitalize()} {rest // 60:02d}:{rest % 60:02d}"
