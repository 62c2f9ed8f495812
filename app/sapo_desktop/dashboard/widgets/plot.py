"""Line plots as text cells, a pure function: lines and marks in, rows of (text, style) runs out.

Braille cells hold 2 x 4 dots, so a plot of C columns evaluates each line at 2 C places: O(C log n) whatever the
number of rounds. Lines differ by pattern (solid, dashed, dotted), never by colour alone.
"""

from __future__ import annotations

import math
from itertools import groupby

from sapo_desktop.dashboard.history.clock import Clock
from sapo_desktop.dashboard.history.moments import MEANINGS
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look.glyphs import Glyphs, mean_of
from sapo_desktop.dashboard.widgets.axis import Axis, View, axis_of, step_of, ticks
from sapo_desktop.dashboard.widgets.canvas import Canvas, Line, Mark, Pattern, Run

_LABEL = 5
"""Columns of the y axis labels."""
_APART = 3
"""Columns from one held-out mark to the next, at least."""
Span = tuple[float, float]


def sample(pattern: Pattern, glyphs: Glyphs) -> str:
    """The legend's picture of a pattern, two cells."""
    if glyphs.ascii:
        return {"solid": "**", "dashed": "==", "dotted": ".."}[pattern]
    return {"solid": "⠤⠤", "dashed": "⠤⠄", "dotted": "⠄⠄"}[pattern]


def axis_for(lines: list[Line], marks: list[Mark], view: View, clock: Clock | None = None) -> Axis | None:
    """The axis of a plot; None when nothing has a value."""
    ends = [(mark.x, mark.x) for mark in marks if mark.y is not None]
    for line in lines:
        first, last = line.series.first_x, line.series.last_x
        if not line.series.empty and first is not None and last is not None:
            ends.append((first, last))
    return axis_of(ends, view, clock)


def nice_range(low: float, high: float) -> tuple[float, float, float]:
    """Bounds and step (1, 2 or 5 times a power of ten) that hold the values; the bottom is 0 when it is near."""
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    if high - low < 0.02:
        middle = (high + low) / 2
        low, high = (0.0, 0.02) if low >= 0 and middle < 0.01 else (middle - 0.01, middle + 0.01)
    step = step_of((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def plot(
    lines: list[Line],
    marks: list[Mark],
    view: View,
    width: int,
    height: int,
    glyphs: Glyphs,
    clock: Clock | None = None,
) -> list[list[Run]]:
    """`height` rows of runs, each `width` cells wide; [] when there is nothing to draw or no room.

    clock: needed for an axis in time.
    """
    columns, rows = columns_of(width), height - 2
    axis = axis_for(lines, marks, view, clock)
    if axis is None or columns < 4 or rows < 2:
        return []
    spans = axis.spans(columns * (1 if glyphs.ascii else 2))
    curves = [([drawn(line.series, span, line.smooth(view.smooth)) for span in spans], line) for line in lines]
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
    labels = _y_labels(low, high, step, rows)
    body = [[_axis_run(labels.get(row), glyphs), *canvas.row(row)] for row in range(rows)]
    return body + _x_axis(axis, columns, glyphs, [mark for mark in marks if mark.y is None])


def columns_of(width: int) -> int:
    """Columns of a plot of so many cells that lines are drawn in; they are its last ones."""
    return width - _LABEL - 1


def drawn(series: Series, span: Span | None, smooth: int) -> float | None:
    """The curve in a column: the moving mean at its middle, or the mean of all of it where it has more rounds than that."""
    first, last = series.first_x, series.last_x
    if span is None or first is None or last is None or span[1] < first or span[0] > last:
        return None
    width = span[1] - span[0]
    place = span[1] if width > smooth else (span[0] + span[1]) / 2
    return series.at(min(max(place, first), last), max(smooth, width))


def _band(line: Line, spans: list[Span | None]) -> list[tuple[list[float | None], Line]]:
    """Two faint curves: the smallest and the largest value in each column."""
    found = [line.series.spread(*span) if span else None for span in spans]
    faint = Line(line.label, line.series, "dotted", "band")
    lows: list[float | None] = [spread and spread.low for spread in found]
    highs: list[float | None] = [spread and spread.high for spread in found]
    return [(lows, faint), (highs, faint)]


def _measured(marks: list[Mark], axis: Axis, columns: int) -> list[tuple[int, Mark]]:
    """Column and measurement; where they would touch each other, the mean of those that are near."""
    placed: dict[int, list[Mark]] = {}
    for mark in marks:
        share = axis.share_of_round(mark.x, mark.time) if mark.y is not None else -1.0
        if 0 <= share <= 1:
            placed.setdefault(min(int(share * columns), columns - 1), []).append(mark)
    if len(placed) <= columns // _APART and all(len(some) == 1 for some in placed.values()):
        return [(column, some[0]) for column, some in placed.items()]
    shared: dict[int, list[Mark]] = {}
    for column, some in placed.items():
        shared.setdefault(column // _APART, []).extend(some)
    return [(min(place * _APART + _APART // 2, columns - 1), _together(some)) for place, some in shared.items()]


def _together(marks: list[Mark]) -> Mark:
    y, low, high = [m.y for m in marks], [m.low for m in marks], [m.high for m in marks]
    return Mark(marks[-1].x, mean_of(y), mean_of(low), mean_of(high))


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


def _x_axis(axis: Axis, columns: int, glyphs: Glyphs, happened: list[Mark]) -> list[list[Run]]:
    """The baseline with ticks and what happened where, and the row of labels under it."""
    rule, labels = [glyphs.horizontal] * columns, [" "] * (columns + _LABEL + 1)
    free = 0
    for place, text in ticks(axis, columns):
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


def _rank(mark: Mark) -> int:
    """0 for the letter that is shown where several fall on one place."""
    return list(MEANINGS).index(mark.letter) if mark.letter in MEANINGS else len(MEANINGS)
