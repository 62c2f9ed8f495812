"""The line under a chart: what its lines and letters are and their values now, or all values where the crosshair is."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from sapo_desktop.dashboard.history.moments import MEANINGS
from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import percent, reward
from sapo_desktop.dashboard.widgets.axis import Axis, View, when
from sapo_desktop.dashboard.widgets.canvas import Line, Mark
from sapo_desktop.dashboard.widgets.plot import Span, drawn, sample

Style = Callable[[str], str]
"""From the name of a component to its colour."""


def legend(
    lines: list[Line], marks: list[Mark], view: View, axis: Axis | None, room: int, glyphs: Glyphs, style: Style
) -> Content:
    """Every line with its mean now, the held-out mark, and the letters that are seen with their words.

    Where it is narrow the words go first, then the letters, then the figures; the names of the lines stay.
    """
    known = [(line, mean) for line in lines if (mean := line.series.tail_mean(line.smooth(view.smooth))) is not None]
    named = [_named(line, _value(line, mean), glyphs, style) for line, mean in known]
    bare = [_named(line, "", glyphs, style) for line, _ in known]
    held = [Content.styled(f"{glyphs.mark} held-out", style("mark"))] if any(m.y is not None for m in marks) else []
    letters = _letters(marks, axis)
    words = [Content.styled(f"{letter} {word}", style("mark")) for letter, word in letters]
    short = [Content.styled("".join(letter for letter, _ in letters), style("mark"))] if letters else []
    wide = Content("  ").join(named + held + words)
    tight = [named + held + words, named + held + short, named + held, named, bare]
    return _first_that_fits([wide, *(Content(" ").join(parts) for parts in tight)], room)


def at_crosshair(
    lines: list[Line],
    marks: list[Mark],
    view: View,
    axis: Axis,
    columns: int,
    room: int,
    glyphs: Glyphs,
    style: Style,
) -> Content:
    """The round and its time, each line with the range that its mean is of, a held-out result and what happened there."""
    column = axis.column(view.cross or 0.0, columns) if columns > 0 else None
    if column is None or view.cross is None:
        return Content.styled("the crosshair is outside of what is seen", style("cross"))
    span = axis.spans(columns)[column]
    if span is None:
        return Content.styled(f"{when(view.cross)}: nothing ran", style("cross"))
    place = max(round(axis.round_at(axis.share(view.cross))), 1)
    at = f" {glyphs.dot} {when(view.cross)}" if axis.clock is not None else ""
    head = [Content.styled(f"round {place}{at}", style("cross"))]
    found = [(line, mean) for line in lines if (mean := drawn(line.series, span, line.smooth(view.smooth))) is not None]
    means = [_named(line, _value(line, mean), glyphs, style) for line, mean in found]
    ranges = [_named(line, _ranged(line, mean, span, view), glyphs, style) for line, mean in found]
    near = [m for m in marks if axis.column(_place(m, axis), columns) == column]
    tail = [Content.styled(f"{glyphs.mark} {_measurement(m)}", style("mark")) for m in near[-1:] if m.y is not None]
    tail += [Content.styled(f"{letter} {word}", style("mark")) for letter, word in _letters(near, axis)]
    rows = [head + ranges + tail, head + means + tail, head + means, means]
    return _first_that_fits([Content("  ").join(parts) for parts in rows], room)


def _first_that_fits(texts: list[Content], room: int) -> Content:
    return next((text for text in texts if text.cell_length <= room), texts[-1])


def _place(mark: Mark, axis: Axis) -> float:
    return axis.place(axis.share_of_round(mark.x, mark.time))


def _value(line: Line, value: float) -> str:
    return percent(value, 1) if line.share else reward(value)


def _ranged(line: Line, mean: float, span: Span, view: View) -> str:
    """The mean, and between what it lies."""
    spread = line.series.spread(min(span[0], span[1] - line.smooth(view.smooth) + 1), span[1])
    if spread is None or spread.low == spread.high:
        return _value(line, mean)
    return f"{_value(line, mean)} ({_value(line, spread.low)} to {_value(line, spread.high)})"


def _measurement(mark: Mark) -> str:
    interval = f" (95 %: {reward(mark.low)} to {reward(mark.high)})" if mark.low is not None else ""
    return reward(mark.y) + interval


def _named(line: Line, value: str, glyphs: Glyphs, style: Style) -> Content:
    return Content.styled(f"{sample(line.pattern, glyphs)} {line.label} {value}".rstrip(), style(line.style))


def _letters(marks: list[Mark], axis: Axis | None) -> list[tuple[str, str]]:
    """Letters that are seen, the weightiest first, each with its word."""
    if axis is None:
        return []
    seen = {m.letter for m in marks if m.y is None and 0 <= axis.share_of_round(m.x, m.time) <= 1}
    return [(letter, word) for letter, word in MEANINGS.items() if letter in seen]
