"""Line plots as text cells, a pure function: lines and marks in, rows of (text, style) runs out.

Braille cells hold 2 x 4 dots, so a plot of C columns evaluates each line at 2 C places: O(C log n) whatever the
number of rounds. Lines differ by pattern (solid, dashed, dotted), never by colour alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.series import Series

Pattern = Literal["solid", "dashed", "dotted"]
Run = tuple[str, str]
"""Text and the name of its style: "axis", "mark", or the name of a line's style."""

_PERIOD: dict[Pattern, tuple[int, int]] = {"solid": (1, 1), "dashed": (6, 4), "dotted": (4, 1)}
"""Dot columns of a period, and how many of them are drawn."""
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII_POINT: dict[Pattern, str] = {"solid": "*", "dashed": "=", "dotted": "."}
_LABEL = 5
"""Columns of the y axis labels."""


@dataclass(frozen=True)
class Line:
    """One figure: its label, its series, how it is drawn and in which style."""

    label: str
    series: Series
    pattern: Pattern = "solid"
    style: str = "line-1"


@dataclass(frozen=True)
class Mark:
    """A single measurement, drawn as a glyph of its own over the lines; without a y something that happened, on the axis."""

    x: float
    y: float | None


@dataclass(frozen=True)
class View:
    """window: how many rounds up to the newest, 0 = all. smooth: rounds in the moving mean."""

    window: int = 0
    smooth: int = 20


def sample(pattern: Pattern, glyphs: Glyphs) -> str:
    """The legend's picture of a pattern, two cells."""
    if glyphs.ascii:
        return {"solid": "**", "dashed": "==", "dotted": ".."}[pattern]
    return {"solid": "⠤⠤", "dashed": "⠤⠄", "dotted": "⠄⠄"}[pattern]


def x_range(lines: list[Line], marks: list[Mark], view: View) -> tuple[float, float] | None:
    """First and last x to draw, or None when nothing has a value. Young runs get an axis of at least ten rounds."""
    measured = [mark.x for mark in marks if mark.y is not None]
    ends = [line.series.last_x for line in lines if not line.series.empty] + measured
    starts = [line.series.first_x for line in lines if not line.series.empty] + measured
    known_ends = [end for end in ends if end is not None]
    known_starts = [start for start in starts if start is not None]
    if not known_ends:
        return None
    first, last = min(known_starts), max(known_ends)
    if view.window:
        first = max(first, last - view.window)
    return first, max(last, first + 10)


def nice_range(low: float, high: float) -> tuple[float, float, float]:
    """Bounds and step (1, 2 or 5 times a power of ten) that hold the values; the bottom is 0 when it is near."""
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    if high - low < 0.02:
        middle = (high + low) / 2
        low, high = (0.0, 0.02) if low >= 0 and middle < 0.01 else (middle - 0.01, middle + 0.01)
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def plot(lines: list[Line], marks: list[Mark], view: View, width: int, height: int, glyphs: Glyphs) -> list[list[Run]]:
    """`height` rows of runs, each `width` cells wide; [] when there is nothing to draw or no room."""
    columns, rows = width - _LABEL - 1, height - 2
    span = x_range(lines, marks, view)
    if span is None or columns < 4 or rows < 2:
        return []
    per_cell = 1 if glyphs.ascii else 2
    places = range(columns * per_cell)
    curves = [[_value(line.series, place, len(places), span, view.smooth) for place in places] for line in lines]
    shown = [(mark.x, mark.y) for mark in marks if mark.y is not None and span[0] <= mark.x <= span[1]]
    values = [value for curve in curves for value in curve if value is not None] + [y for _, y in shown]
    if not values:
        return []
    low, high, step = nice_range(min(values), max(values))
    canvas = _Canvas(columns, rows, low, high, glyphs)
    for line, curve in zip(lines, curves, strict=True):
        canvas.draw(curve, line)
    for x, y in shown:
        canvas.mark((x - span[0]) / (span[1] - span[0]), y)
    labels = _y_labels(low, high, step, rows)
    body = [[_axis_run(labels.get(row), glyphs), *canvas.row(row)] for row in range(rows)]
    return body + _x_axis(span, columns, glyphs, [mark.x for mark in marks if mark.y is None])


def _value(series: Series, column: int, columns: int, span: tuple[float, float], smooth: int) -> float | None:
    """The curve at the middle of a column; a point between the edges of the column is not missed."""
    first, last = series.first_x, series.last_x
    if first is None or last is None:
        return None
    width = (span[1] - span[0]) / columns
    left = span[0] + column * width
    if left + width < first or left > last:
        return None
    return series.at(min(max(left + width / 2, first), last), smooth)


class _Canvas:
    """A grid of cells; each keeps the dots or the character on it and the style of whoever drew last."""

    def __init__(self, columns: int, rows: int, low: float, high: float, glyphs: Glyphs) -> None:
        self.columns, self.rows, self.glyphs = columns, rows, glyphs
        self.low, self.high = low, high
        self.dots = [[0] * columns for _ in range(rows)]
        self.chars = [[""] * columns for _ in range(rows)]
        self.styles = [["axis"] * columns for _ in range(rows)]

    def draw(self, curve: list[float | None], line: Line) -> None:
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

    def mark(self, share: float, value: float) -> None:
        column = min(int(share * self.columns), self.columns - 1)
        row = self._level(value, self.rows)
        self.chars[row][column] = self.glyphs.mark
        self.styles[row][column] = "mark"

    def row(self, row: int) -> list[Run]:
        runs: list[Run] = []
        for dots, char, style in zip(self.dots[row], self.chars[row], self.styles[row], strict=True):
            text = char or (chr(0x2800 + dots) if dots else " ")
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

    def _put(self, column: int, row: int, line: Line) -> None:
        self.chars[row][column] = _ASCII_POINT[line.pattern]
        self.styles[row][column] = line.style


def _y_labels(low: float, high: float, step: float, rows: int) -> dict[int, str]:
    """Row -> label at each step that fits, never two on neighbouring rows (the top and the bottom always)."""
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
        labels[row] = _number(low + place * step, digits)
    return labels


def _axis_run(label: str | None, glyphs: Glyphs) -> Run:
    return (label or "").rjust(_LABEL) + (glyphs.tick if label else glyphs.vertical), "axis"


def _number(value: float, digits: int) -> str:
    """Without a leading zero: .25, and 0 as 0."""
    if abs(value) < 1e-9:
        return "0"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _x_axis(span: tuple[float, float], columns: int, glyphs: Glyphs, changes: list[float]) -> list[list[Run]]:
    """The baseline with ticks at round multiples and what happened where, and the row of numbers under it."""
    step = _step((span[1] - span[0]) / max(1, columns // 12))
    rule, labels = [glyphs.horizontal] * columns, [" "] * (columns + _LABEL + 1)
    free = 0
    tick = math.ceil(span[0] / step - 1e-9) * step
    while tick <= span[1] + 1e-9:
        column = round((tick - span[0]) / (span[1] - span[0]) * (columns - 1))
        text = f"{tick:.0f}"
        start = min(max(column + _LABEL + 1 - len(text) // 2, free), len(labels) - len(text))
        rule[column] = "+" if glyphs.ascii else "┴"
        if start >= free:
            labels[start : start + len(text)] = text
            free = start + len(text) + 1
        tick += step
    places = {round((x - span[0]) / (span[1] - span[0]) * (columns - 1)) for x in changes if span[0] <= x <= span[1]}
    cells = [(glyphs.change, "mark") if place in places else (cell, "axis") for place, cell in enumerate(rule)]
    runs = [("".join(text for text, _ in some), style) for style, some in groupby(cells, key=lambda cell: cell[1])]
    return [[(" " * _LABEL + glyphs.corner, "axis"), *runs], [("".join(labels), "axis")]]


def _step(raw: float) -> float:
    """The least 1, 2 or 5 times a power of ten (whole rounds) that is not under raw."""
    power = 10.0 ** math.floor(math.log10(max(raw, 1.0)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
