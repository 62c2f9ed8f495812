"""The x axis of a plot: rounds, or the time at which they ran; which part of it is seen, its ticks and their labels."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sapo_desktop.dashboard.history.clock import Clock
from sapo_swarm.node.clock import local

_LEAST_ROUNDS, _LEAST_S = 10.0, 60.0
"""Young runs get an axis of at least this length, and no window is smaller."""
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
_HOUR_S, _DAY_S = 3600, 86_400
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class View:
    """What of a chart is seen. window: rounds (on a time axis seconds) up to its right end, 0 = all. smooth: rounds in the
    moving mean. end: the right end, None = the newest. timed: the axis is time. band: smallest and largest values too.
    cross: where the crosshair is, a round (on a time axis Unix seconds)."""

    window: float = 0
    smooth: int = 20
    end: float | None = None
    timed: bool = False
    band: bool = False
    cross: float | None = None


@dataclass(frozen=True)
class Axis:
    """From `first` to `last`: rounds, or with a clock Unix seconds. whole: the same for all that there is."""

    first: float
    last: float
    whole: tuple[float, float]
    clock: Clock | None = None

    @property
    def least(self) -> float:
        """The shortest stretch that is shown."""
        return _LEAST_ROUNDS if self.clock is None else _LEAST_S

    def place(self, share: float) -> float:
        """The round (or time) at a share of the width."""
        return self.first + share * (self.last - self.first)

    def share(self, place: float) -> float:
        """Inverse of place; outside of [0, 1] when it is not seen."""
        return (place - self.first) / (self.last - self.first)

    def column(self, place: float, columns: int) -> int | None:
        """The column of a place; None when it is not seen."""
        share = self.share(place)
        return min(int(share * columns), columns - 1) if -1e-9 <= share <= 1 + 1e-9 else None

    def round_at(self, share: float) -> float:
        """The round that was done, or in work, at a share of the width."""
        place = self.place(share)
        if self.clock is None:
            return place
        found = self.clock.round_at(place)
        return place if found is None else found

    def share_of_round(self, round_: float, at: float = 0.0) -> float:
        """The share of the width at which a round is; at: Unix seconds of what is meant, 0 = of the round's end."""
        if self.clock is None:
            return self.share(round_)
        found = at or self.clock.time_of(round_)
        return -1.0 if found is None else self.share(found)

    def spans(self, columns: int) -> list[tuple[float, float] | None]:
        """First and last round of each column; None where nothing ran."""
        edges = [self.round_at(column / columns) for column in range(columns + 1)]
        clock = self.clock
        if clock is None:
            return list(pairwise(edges))
        middles = [self.place((column + 0.5) / columns) for column in range(columns)]
        paused = [clock.paused_at(middle) for middle in middles]
        return [None if idle else pair for pair, idle in zip(pairwise(edges), paused, strict=True)]


def axis_of(rounds: Iterable[tuple[float, float]], view: View, clock: Clock | None) -> Axis | None:
    """The axis of a view over figures that have these first and last rounds; None when there are none."""
    found = list(rounds)
    if not found:
        return None
    if view.timed and clock is not None and clock.span is not None:
        first, last = clock.span
        least, used = _LEAST_S, clock
    else:
        first, last = min(first for first, _ in found), max(last for _, last in found)
        least, used = _LEAST_ROUNDS, None
    whole = (first, max(last, first + least))
    if not view.window:
        return Axis(*whole, whole, used)
    window = max(view.window, least)
    end = whole[1] if view.end is None else min(max(view.end, first + window), whole[1])
    start = max(first, end - window)
    return Axis(start, max(end, start + least), whole, used)


def ticks(axis: Axis, columns: int) -> list[tuple[float, str]]:
    """Places at even distances with their labels, wide enough apart for them; the first round is among them."""
    raw = (axis.last - axis.first) / max(1, columns // 12)
    if axis.clock is not None:
        return _time_ticks(axis, raw)
    step = step_of(max(raw, 1.0))  # whole rounds
    count = range(math.ceil(axis.first / step - 1e-9), math.floor(axis.last / step + 1e-9) + 1)
    places = [number * step for number in count]
    start = [axis.first] if axis.first == axis.whole[0] and axis.first not in places else []
    return [(place, f"{place:.0f}") for place in [*start, *places]]


def when(moment: float) -> str:
    """Weekday and local time of Unix seconds: "Tue 14:03"."""
    there = local(moment)
    return f"{_DAYS[there.tm_wday]} {there.tm_hour:02}:{there.tm_min:02}"


def length(seconds: float) -> str:
    """A stretch of time: "45 s", "12 min", "6 h", "7 days"."""
    for unit, size in (("days", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _time_ticks(axis: Axis, raw: float) -> list[tuple[float, str]]:
    step = next((step for step in _STEPS_S if step >= raw), _STEPS_S[-1])
    shift = _shift(axis.first)
    count = range(math.ceil((axis.first + shift) / step), math.floor((axis.last + shift) / step) + 2)
    found = []
    for number in count:
        wall = float(number * step)
        place = wall - shift
        if step > _HOUR_S:  # a day of 23 or 25 hours moves every midnight after it
            place = wall - _shift(place)
        else:
            wall = place + _shift(place)
        found.append((place, _time_label(wall, step)))
    return [(place, label) for place, label in found if axis.first <= place <= axis.last]


def _shift(moment: float) -> int:
    """Seconds that local time is ahead of UTC then."""
    return local(moment).tm_gmtoff


def _time_label(wall: float, step: int) -> str:
    """wall: what a clock here shows then, as seconds."""
    there = time.gmtime(wall)
    if step >= _DAY_S or (there.tm_hour, there.tm_min, there.tm_sec) == (0, 0, 0):
        return f"{_DAYS[there.tm_wday]} {there.tm_mday}"
    return f"{there.tm_hour:02}:{there.tm_min:02}" + (f":{there.tm_sec:02}" if step < 60 else "")


def step_of(raw: float) -> float:
    """The least 1, 2 or 5 times a power of ten that is not under raw."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
