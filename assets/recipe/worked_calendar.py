"""Short worked solutions of calendar_arithmetic: every question becomes a remainder by seven."""

from __future__ import annotations

from calendar import day_name, month_name, monthrange
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any


def _name(day: date) -> str:
    return day_name[day.weekday()]


def _offset(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    start, offset = date.fromisoformat(meta["start_date"]), int(meta["offset_days"])
    rest = abs(offset) % 7
    word = "plus" if offset > 0 else "minus"
    return f"{abs(offset)} by 7 leaves {rest}. {_name(start)} {word} {rest}: {entry['answer']}."


def _of_date(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    day = date.fromisoformat(meta["target_date"])
    first, rest = day.replace(day=1), (day.day - 1) % 7
    return f"{month_name[day.month]} 1: {_name(first)}. {day.day - 1} by 7 leaves {rest}: {entry['answer']}."


def _from_first(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    delta = int(meta["delta_days"])
    return f"{delta} days, by 7 leaves {delta % 7}. {meta['first_day']} plus {delta % 7}: {entry['answer']}."


def _recurring(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    first = date(meta["year"], meta["month"], 1)
    early = 1 + (list(day_name).index(meta["weekday"]) - first.weekday()) % 7
    length = monthrange(meta["year"], meta["month"])[1]
    days = ", ".join(str(day) for day in range(early, length + 1, 7))
    return f"{month_name[first.month]} 1: {_name(first)}. {meta['weekday']}: {days}."


def _count(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    start, end = date.fromisoformat(meta["start_date"]), date.fromisoformat(meta["end_date"])
    length = (end - start).days + 1
    return f"{length} days: {length // 7} weeks, rest {length % 7}: {entry['answer']}."


def _business(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    start, end = date.fromisoformat(meta["start_date"]), date.fromisoformat(meta["end_date"])
    length = (end - start).days + 1
    rest = sum((start + timedelta(days=i)).weekday() < 5 for i in range(length % 7))
    return f"{length} days: {length // 7} weeks, {5 * (length // 7)} plus {rest}: {entry['answer']}."


def _leap(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    return f"{meta['year']} by 4 leaves {meta['year'] % 4}: {entry['answer']}."


_STEPS: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
    "weekday_offset": _offset,
    "weekday_of_date": _of_date,
    "weekday_of_date_from_first_date": _from_first,
    "recurring_event_day": _recurring,
    "count_days": _count,
    "count_business_days": _business,
    "is_leap_year": _leap,
}


def calendar_arithmetic(entry: dict[str, Any]) -> tuple[str, str]:
    """Gives (steps, answer) for each of the seven kinds of calendar question."""
    meta = entry["metadata"]
    return _STEPS[meta["task"]](meta, entry), str(entry["answer"])
