"""Line plots as text cells, pure functions: the grid of cells, the x axis of rounds or times, lines and marks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from sapo_desktop.dashboard.history.run import MEANINGS, RoundClock
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look import GlyphSet, mean_of
from sapo_swarm.node.clock import local_time
from sapo_swarm.node.training_count import ROUNDS_ONLY, TrainingCounts

# The x axis of a plot: rounds, or the time at which they ran; the visible part, its ticks and their labels.

_LEAST_ROUNDS, _LEAST_S = 10.0, 60.0
"""Minimum length of the axis, for young runs and small windows."""
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
_HOUR_S, _DAY_S = 3600, 86_400
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class ChartView:
    """The visible part of a chart. window: rounds (on a time axis seconds) up to its right end, 0 = all. smooth: rounds in the
    moving mean. end: the right end, None = the newest. timed: the axis is time. band: show smallest and largest values.
    cross: position of the crosshair, a round (on a time axis Unix seconds)."""

    window: float = 0
    smooth: int = 20
    end: float | None = None
    timed: bool = False
    band: bool = False
    cross: float | None = None


@dataclass(frozen=True)
class Axis:
    """From `first` to `last`: running numbers of rounds, or with a clock Unix seconds. whole: (first, last) of all the data.
    counts: what the numbers are called, see label()."""

    first: float
    last: float
    whole: tuple[float, float]
    clock: RoundClock | None = None
    counts: TrainingCounts = ROUNDS_ONLY

    @property
    def least(self) -> float:
        """The shortest range that can be shown."""
        return _LEAST_ROUNDS if self.clock is None else _LEAST_S

    def place(self, share: float) -> float:
        """The round (or time) at a share of the width."""
        return self.first + share * (self.last - self.first)

    def share(self, place: float) -> float:
        """Inverse of place(); outside [0, 1] if the place is not visible."""
        return (place - self.first) / (self.last - self.first)

    def column(self, place: float, columns: int) -> int | None:
        """The column of a place; None if it is not visible."""
        share = self.share(place)
        return min(int(share * columns), columns - 1) if -1e-9 <= share <= 1 + 1e-9 else None

    def label(self, number: float) -> str:
        """What people call a running number: a round of practice, or a step of examples."""
        done = self.counts.at(round(number))
        return f"{done.rounds}" if done.rounds or not done.steps else f"step {done.steps}"

    def round_at(self, share: float) -> float:
        """The round finished or in flight at a share of the width."""
        place = self.place(share)
        if self.clock is None:
            return place
        round_ = self.clock.round_at(place)
        return place if round_ is None else round_

    def share_of_round(self, round_: float, at: float = 0.0) -> float:
        """The share of the width at which a round is. at: Unix seconds of the event, 0 = the round's end."""
        if self.clock is None:
            return self.share(round_)
        place = at or self.clock.time_of(round_)
        return -1.0 if place is None else self.share(place)

    def spans(self, columns: int) -> list[tuple[float, float] | None]:
        """First and last round of each column; None where nothing ran."""
        edges = [self.round_at(column / columns) for column in range(columns + 1)]
        clock = self.clock
        if clock is None:
            return list(pairwise(edges))
        middles = [self.place((column + 0.5) / columns) for column in range(columns)]
        paused = [clock.paused_at(middle) for middle in middles]
        return [None if idle else pair for pair, idle in zip(pairwise(edges), paused, strict=True)]


def axis_of(
    rounds: Iterable[tuple[float, float]],
    view: ChartView,
    clock: RoundClock | None,
    counts: TrainingCounts = ROUNDS_ONLY,
) -> Axis | None:
    """The axis of a view over series with these (first, last) rounds; None if there are none."""
    ranges = list(rounds)
    if not ranges:
        return None
    if view.timed and clock is not None and clock.span is not None:
        first, last = clock.span
        shortest, axis_clock = _LEAST_S, clock
    else:
        first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
        shortest, axis_clock = _LEAST_ROUNDS, None
    whole = (first, max(last, first + shortest))
    if not view.window:
        return Axis(*whole, whole, axis_clock, counts)
    window = max(view.window, shortest)
    end = whole[1] if view.end is None else min(max(view.end, first + window), whole[1])
    start = max(first, end - window)
    return Axis(start, max(end, start + shortest), whole, axis_clock, counts)


def axis_ticks(axis: Axis, columns: int) -> list[tuple[float, str]]:
    """Evenly spaced places with labels, far enough apart for the labels; the first round is always included."""
    raw = (axis.last - axis.first) / max(1, columns // 12)
    if axis.clock is not None:
        return _time_ticks(axis, raw)
    step = step_of(max(raw, 1.0))  # whole rounds
    newest = axis.counts.now
    before = axis.counts.end - newest.rounds if newest.rounds else 0  # so that rounds of practice get round numbers
    count = range(math.ceil((axis.first - before) / step - 1e-9), math.floor((axis.last - before) / step + 1e-9) + 1)
    places = [before + number * step for number in count if before + number * step >= 0]
    start = [axis.first] if axis.first == axis.whole[0] and axis.first not in places else []
    return [(place, axis.label(place)) for place in [*start, *places]]


def format_weekday_time(moment: float) -> str:
    """Weekday and local time of Unix seconds: "Tue 14:03"."""
    there = local_time(moment)
    return f"{_DAYS[there.tm_wday]} {there.tm_hour:02}:{there.tm_min:02}"


def format_time_span(seconds: float) -> str:
    """A duration: "45 s", "12 min", "6 h", "7 days"."""
    for unit, size in (("days", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _time_ticks(axis: Axis, raw: float) -> list[tuple[float, str]]:
    step = next((step for step in _STEPS_S if step >= raw), _STEPS_S[-1])
    shift = _shift(axis.first)
    count = range(math.ceil((axis.first + shift) / step), math.floor((axis.last + shift) / step) + 2)
    ticks = []
    for number in count:
        wall = float(number * step)
        place = wall - shift
        if step > _HOUR_S:  # a day of 23 or 25 hours moves every midnight after it
            place = wall - _shift(place)
        else:
            wall = place + _shift(place)
        ticks.append((place, _time_label(wall, step)))
    return [(place, label) for place, label in ticks if axis.first <= place <= axis.last]


def _shift(moment: float) -> int:
    """Seconds by which local time is ahead of UTC at that moment."""
    return local_time(moment).tm_gmtoff


def _time_label(wall: float, step: int) -> str:
    """wall: the local clock time, in seconds."""
    there = time.gmtime(wall)
    if step >= _DAY_S or (there.tm_hour, there.tm_min, there.tm_sec) == (0, 0, 0):
        return f"{_DAYS[there.tm_wday]} {there.tm_mday}"
    return f"{there.tm_hour:02}:{there.tm_min:02}" + (f":{there.tm_sec:02}" if step < 60 else "")


def step_of(raw: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)


# The cell grid of a plot, and what is drawn on it: lines by pattern, marks, and their intervals.

Pattern = Literal["solid", "dashed", "dotted"]
Run = tuple[str, str]
"""(text, style name): "axis", "mark", or a line's style."""

_PERIOD: dict[Pattern, tuple[int, int]] = {"solid": (1, 1), "dashed": (6, 4), "dotted": (4, 1)}
"""(dot columns per period, how many of them are drawn)."""
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII_POINT: dict[Pattern, str] = {"solid": "*", "dashed": "=", "dotted": "."}


@dataclass(frozen=True)
class ChartLine:
    """One metric: label, series, pattern and style. share: the metric is a share over a separate window, drawn
    as reported (no moving mean) and written as a percentage, see in_percent()."""

    label: str
    series: Series
    pattern: Pattern = "solid"
    style: str = "line-1"
    share: bool = False

    def smooth(self, wanted: int) -> int:
        """Width of the moving mean for this line."""
        return 1 if self.share else wanted


@dataclass(frozen=True)
class ChartMark:
    """A single measurement at round x, drawn as a separate glyph over the lines, with its interval from low to high. Without
    a y it is a milestone, a letter on the axis. time: Unix seconds, 0 = when round x ended."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    letter: str = ""
    time: float = 0.0


class Canvas:
    """A grid of cells; each has dots or a character, and the style of what was drawn last."""

    def __init__(self, columns: int, rows: int, low: float, high: float, glyphs: GlyphSet) -> None:
        self.columns, self.rows, self.glyphs = columns, rows, glyphs
        self.low, self.high = low, high
        self.dots = [[0] * columns for _ in range(rows)]
        self.chars = [[""] * columns for _ in range(rows)]
        self.styles = [["axis"] * columns for _ in range(rows)]
        self.behind: list[dict[int, Run]] = [{} for _ in range(rows)]

    def draw(self, curve: list[float | None], line: ChartLine) -> None:
        """Draw a line, one value per dot column (in ASCII per cell); None is a gap."""
        period, drawn = _PERIOD[line.pattern]
        before: int | None = None
        for column, value in enumerate(curve):
            if value is None:
                before = None
                continue
            if self.glyphs.ascii:
                self._put(column, self._level(value, self.rows), line)
                continue
            level = self._level(value, self.rows * 4)
            if column % period < drawn:
                near = level if before is None or line.pattern == "dotted" else before
                step = 1 if level >= near else -1
                start = near + step if near != level else level
                for y in range(start, level + step, step):
                    self._dot(column, y, line.style)
            before = level

    def mark(self, column: int, mark: ChartMark) -> None:
        """Draw a mark's glyph, with its interval behind the lines."""
        assert mark.y is not None
        if mark.low is not None and mark.high is not None:
            for row in range(self._level(mark.high, self.rows), self._level(mark.low, self.rows) + 1):
                self.behind[row][column] = (self.glyphs.interval, "band")
        row = self._level(mark.y, self.rows)
        self.chars[row][column] = self.glyphs.mark
        self.styles[row][column] = "mark"

    def cross(self, column: int) -> None:
        """Draw the crosshair's line, behind everything."""
        for row in range(self.rows):
            self.behind[row][column] = (self.glyphs.vertical, "cross")

    def row(self, row: int) -> list[Run]:
        """A finished row, 0 at the top."""
        runs: list[Run] = []
        cells = zip(self.dots[row], self.chars[row], self.styles[row], strict=True)
        for column, (dots, char, own) in enumerate(cells):
            text, style = char or (chr(0x2800 + dots) if dots else " "), own
            if text == " ":
                text, style = self.behind[row].get(column, (text, style))
            if runs and (text == " " or runs[-1][1] == style):
                runs[-1] = (runs[-1][0] + text, runs[-1][1])
            else:
                runs.append((text, style))
        return runs

    def _level(self, value: float, levels: int) -> int:
        """Row of a value, 0 at the top."""
        share = (value - self.low) / (self.high - self.low)
        return min(max(round((1 - share) * (levels - 1)), 0), levels - 1)

    def _dot(self, column: int, y: int, style: str) -> None:
        self.dots[y // 4][column // 2] |= _BITS[column % 2][y % 4]
        self.styles[y // 4][column // 2] = style

    def _put(self, column: int, row: int, line: ChartLine) -> None:
        self.chars[row][column] = _ASCII_POINT[line.pattern]
        self.styles[row][column] = line.style


# Line plots as text cells: a pure function from lines and marks to rows of (text, style) runs.
#
# Braille cells hold 2 x 4 dots, so a plot of C columns evaluates each line at 2 C places: O(C log n) whatever the
# number of rounds. Lines differ by pattern (solid, dashed, dotted), never by colour alone.

_LABEL = 5
"""Columns of the y axis labels."""
_APART = 3
"""Minimum columns between held-out marks."""
Span = tuple[float, float]


def in_percent(lines: list[ChartLine]) -> bool:
    """Whether a chart's axis and values are percentages: all lines with data are shares. A chart has one unit."""
    drawn = [line for line in lines if not line.series.empty]
    return bool(drawn) and all(line.share for line in drawn)


def pattern_sample(pattern: Pattern, glyphs: GlyphSet) -> str:
    """The legend's sample of a pattern, two cells wide."""
    if glyphs.ascii:
        return {"solid": "**", "dashed": "==", "dotted": ".."}[pattern]
    return {"solid": "⠤⠤", "dashed": "⠤⠄", "dotted": "⠄⠄"}[pattern]


def axis_for(
    lines: list[ChartLine],
    marks: list[ChartMark],
    view: ChartView,
    clock: RoundClock | None = None,
    counts: TrainingCounts = ROUNDS_ONLY,
) -> Axis | None:
    """The axis of a plot; None if there are no values."""
    ends = [(mark.x, mark.x) for mark in marks if mark.y is not None]
    for line in lines:
        first, last = line.series.first_x, line.series.last_x
        if not line.series.empty and first is not None and last is not None:
            ends.append((first, last))
    return axis_of(ends, view, clock, counts)


def nice_range(low: float, high: float) -> tuple[float, float, float]:
    """(bottom, top, step) that enclose the values; step is 1, 2 or 5 times a power of ten, and a bottom near 0 becomes 0."""
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    if high - low < 0.02:
        middle = (high + low) / 2
        low, high = (0.0, 0.02) if low >= 0 and middle < 0.01 else (middle - 0.01, middle + 0.01)
    step = step_of((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def draw_plot(
    lines: list[ChartLine],
    marks: list[ChartMark],
    view: ChartView,
    width: int,
    height: int,
    glyphs: GlyphSet,
    clock: RoundClock | None = None,
    counts: TrainingCounts = ROUNDS_ONLY,
) -> list[list[Run]]:
    """`height` rows of runs, each `width` cells wide; [] if there is nothing to draw or no room.

    clock: needed for an axis in time. counts: what the numbers on the axis are called.
    """
    columns, rows = columns_of(width), height - 2
    axis = axis_for(lines, marks, view, clock, counts)
    if axis is None or columns < 4 or rows < 2:
        return []
    spans = axis.spans(columns * (1 if glyphs.ascii else 2))
    curves = [([curve_value(line.series, span, line.smooth(view.smooth)) for span in spans], line) for line in lines]
    bands = [curve for line in lines for curve in _band(line, spans)] if view.band else []
    shown = _measured(marks, axis, columns)
    values = [v for curve, _ in [*curves, *bands] for v in curve if v is not None]
    values += [v for _, mark in shown for v in (mark.y, mark.low, mark.high) if v is not None]
    if not values:
        return []
    low, high, step = nice_range(min(values), max(values))
    canvas = Canvas(columns, rows, low, high, glyphs)
    for curve, line in [*bands, *curves]:
        canvas.draw(curve, line)
    for at, mark in shown:
        canvas.mark(at, mark)
    if view.cross is not None and (column := axis.column(view.cross, columns)) is not None:
        canvas.cross(column)
    labels = _y_labels(low, high, step, rows, in_percent(lines))
    body = [[_axis_run(labels.get(row), glyphs), *canvas.row(row)] for row in range(rows)]
    return body + _x_axis(axis, columns, glyphs, [mark for mark in marks if mark.y is None])


def columns_of(width: int) -> int:
    """Columns for lines in a plot of `width` cells; they are the rightmost ones."""
    return width - _LABEL - 1


def curve_value(series: Series, span: Span | None, smooth: int) -> float | None:
    """The curve's value in a column: the moving mean at its middle, or the column's mean if it spans more rounds than that."""
    first, last = series.first_x, series.last_x
    if span is None or first is None or last is None or span[1] < first or span[0] > last:
        return None
    width = span[1] - span[0]
    place = span[1] if width > smooth else (span[0] + span[1]) / 2
    return series.at(min(max(place, first), last), max(smooth, width))


def _band(line: ChartLine, spans: list[Span | None]) -> list[tuple[list[float | None], ChartLine]]:
    """Two faint curves: the smallest and the largest value in each column."""
    spreads = [line.series.spread(*span) if span else None for span in spans]
    faint = ChartLine(line.label, line.series, "dotted", "band")
    lows: list[float | None] = [spread and spread.low for spread in spreads]
    highs: list[float | None] = [spread and spread.high for spread in spreads]
    return [(lows, faint), (highs, faint)]


def _measured(marks: list[ChartMark], axis: Axis, columns: int) -> list[tuple[int, ChartMark]]:
    """(column, measurement); measurements that would touch are replaced by their mean."""
    placed: dict[int, list[ChartMark]] = {}
    for mark in marks:
        share = axis.share_of_round(mark.x, mark.time) if mark.y is not None else -1.0
        if 0 <= share <= 1:
            placed.setdefault(min(int(share * columns), columns - 1), []).append(mark)
    if len(placed) <= columns // _APART and all(len(some) == 1 for some in placed.values()):
        return [(column, some[0]) for column, some in placed.items()]
    shared: dict[int, list[ChartMark]] = {}
    for column, some in placed.items():
        shared.setdefault(column // _APART, []).extend(some)
    return [(min(place * _APART + _APART // 2, columns - 1), _together(some)) for place, some in shared.items()]


def _together(marks: list[ChartMark]) -> ChartMark:
    y, low, high = [m.y for m in marks], [m.low for m in marks], [m.high for m in marks]
    return ChartMark(marks[-1].x, mean_of(y), mean_of(low), mean_of(high))


def _y_labels(low: float, high: float, step: float, rows: int, percent: bool = False) -> dict[int, str]:
    """Row -> label at each step that fits, never on adjacent rows; top and bottom always have one."""
    count = round((high - low) / step)
    stride = 1
    while count / stride > max(1, (rows - 1) // 2):
        stride += 1
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    places = {*range(0, count + 1, stride), count}
    labels: dict[int, str] = {}
    for place in sorted(places):
        row = min(max(round((1 - place / count) * (rows - 1)), 0), rows - 1)
        if place != count and place and (row - 1 in labels or row + 1 in labels or row <= 1):
            continue
        value = low + place * step
        labels[row] = _percentage(value, max(0, digits - 2)) if percent else _number(value, digits)
    return labels


def _axis_run(label: str | None, glyphs: GlyphSet) -> Run:
    return (label or "").rjust(_LABEL) + (glyphs.tick if label else glyphs.vertical), "axis"


def _number(value: float, digits: int) -> str:
    """The number without a leading zero: .25, and 0 as 0."""
    if abs(value) < 1e-9:
        return "0"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _percentage(value: float, digits: int) -> str:
    """At most _LABEL columns: 45 %, 4.5 %, 99.5%, 100.2."""
    number = f"{100 * abs(value):.{digits}f}"
    return next((text for text in (f"{number} %", f"{number}%") if len(text) <= _LABEL), number)


def _x_axis(axis: Axis, columns: int, glyphs: GlyphSet, happened: list[ChartMark]) -> list[list[Run]]:
    """The baseline with ticks and milestones, and the row of labels below it."""
    rule, labels = [glyphs.horizontal] * columns, [" "] * (columns + _LABEL + 1)
    free = 0
    for place, text in axis_ticks(axis, columns):
        column = round(axis.share(place) * (columns - 1))
        start = min(max(column + _LABEL + 1 - len(text) // 2, free), len(labels) - len(text))
        if start >= free:
            rule[column] = "+" if glyphs.ascii else "┴"
            labels[start : start + len(text)] = text
            free = start + len(text) + 1
    for mark in sorted(happened, key=_rank, reverse=True):
        share = axis.share_of_round(mark.x, mark.time)
        if 0 <= share <= 1:
            rule[round(share * (columns - 1))] = mark.letter
    cells = [(cell, "mark" if cell.isalpha() else "axis") for cell in rule]
    runs = [("".join(text for text, _ in some), style) for style, some in groupby(cells, key=lambda cell: cell[1])]
    return [[(" " * _LABEL + glyphs.corner, "axis"), *runs], [("".join(labels), "axis")]]


def _rank(mark: ChartMark) -> int:
    """Priority of a letter if several coincide; the lowest (0) is shown."""
    return list(MEANINGS).index(mark.letter) if mark.letter in MEANINGS else len(MEANINGS)
