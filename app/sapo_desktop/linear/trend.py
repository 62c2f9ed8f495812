"""A chart as a sentence: where a figure stands, where it came from, and its last values."""

from __future__ import annotations

from sapo_desktop.dashboard.history.run import Clock
from sapo_desktop.dashboard.history.series import Series

SMOOTH = 20
"""Rounds that a mean is of, as in the charts."""
_LAST = 10
_AGO = ((86_400.0, "a day ago"), (3600.0, "an hour ago"), (600.0, "ten minutes ago"))
"""The longest of these that the record reaches back is told; with less than the shortest: the beginning."""
_SAME = 0.005
"""A change that is smaller is none."""


def trend(name: str, series: Series, clock: Clock, share: bool = False, smooth: int = SMOOTH) -> str:
    """One figure over rounds. share: as percent. smooth: rounds that a mean is of, 1 is the value as it was told."""
    now = series.tail_mean(smooth)
    if now is None:
        return f"{name}: no value yet"
    mean = f", mean of {smooth} rounds" if smooth > 1 and (series.last_x or 0) > smooth else ""
    said = f"{name} {_figure(now, share)}{mean}{_change(series, clock, now, share, smooth)}"
    last = series.newest(_LAST)
    spread = series.range()
    if len(last) > 1:
        told = ["none" if value is None else _figure(value, share) for value in last]
        same = len(set(told)) == 1
        said += (
            f"; the same in the last {len(last)} rounds" if same else f"; last {len(last)} rounds: {', '.join(told)}"
        )
    if spread is not None and spread.high > spread.low:
        said += f"; between {_figure(spread.low, share)} and {_figure(spread.high, share)} so far"
    return said


def _change(series: Series, clock: Clock, now: float, share: bool, smooth: int) -> str:
    span = clock.span
    first, last = series.first_x, series.last_x
    if span is None or first is None or last is None or last - first < 2:
        return ""
    when, place = f"in round {first:.0f}", first
    for seconds, words in _AGO:
        then = clock.round_at(span[1] - seconds)
        if then is not None and span[1] - seconds >= span[0] and then >= first:
            when, place = words, then
            break
    before = series.at(place, smooth)
    if before is None:
        return ""
    if abs(now - before) < _SAME:
        return f", as {when}"
    return f", {'up' if now > before else 'down'} from {_figure(before, share)} {when}"


def _figure(value: float, share: bool) -> str:
    return f"{100 * value:.1f} %" if share else f"{value:.2f}"
