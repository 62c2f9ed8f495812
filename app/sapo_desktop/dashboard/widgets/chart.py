"""The chart widget, with zooming, panning and the line of values below it; it repaints only what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isclose
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from sapo_desktop.dashboard.history.run import MEANINGS, RoundClock, RunMetrics
from sapo_desktop.dashboard.look import UNICODE, GlyphSet, format_reward_value, format_share, wrap_text
from sapo_desktop.dashboard.widgets.plot import (
    Axis,
    ChartLine,
    ChartMark,
    ChartView,
    Span,
    axis_for,
    columns_of,
    curve_value,
    draw_plot,
    format_time_span,
    format_weekday_time,
    in_percent,
    pattern_sample,
)
from sapo_swarm.node.training_count import ROUNDS_ONLY, TrainingCounts

# Zooming and panning of charts: pure functions from one view to the next.


def zoom_view(view: ChartView, axis: Axis | None, steps: int, share: float | None) -> ChartView:
    """steps: +1 halves the window, -1 doubles it, 0 shows all. share: the share of the width that stays fixed; None: the
    right end."""
    if axis is None or not steps:
        return replace(view, window=0, end=None)
    first, last = axis.whole
    visible = axis.last - axis.first
    window = max(visible * 0.5**steps, axis.least)
    if isclose(window, visible, rel_tol=1e-6):
        return view
    if window >= last - first:
        return replace(view, window=0, end=None)
    fixed = 1.0 if share is None else share
    end = axis.place(fixed) + (1 - fixed) * window
    return _at(replace(view, window=window), axis, end)


def pan_view(view: ChartView, axis: Axis | None, share: float) -> ChartView:
    """The view moved right by `share` of the window."""
    if axis is None or not view.window:
        return view
    return _at(view, axis, axis.last + share * (axis.last - axis.first))


def _at(view: ChartView, axis: Axis, end: float) -> ChartView:
    """The view with that right end; at the newest end it follows new data."""
    first, last = axis.whole
    end = max(end, first + view.window)
    return replace(view, end=None if end >= last else end)


def smoothing_words(lines: list[ChartLine], view: ChartView, counts: TrainingCounts) -> str:
    """What a point of the lines with data is: a moving mean, where there is more than one value, or a round or step alone."""
    drawn = [line for line in lines if not line.series.empty]
    widths = [line.smooth(view.smooth) for line in drawn if len(line.series) > 1] if drawn else [view.smooth]
    if max(widths, default=1) > 1:
        return f"mean of {view.smooth}"
    return "every step" if counts.now.steps and not counts.now.rounds else "every round"


# The line below a chart: the legend with current values, or all values at the crosshair.

ColourOf = Callable[[str], str]
"""Component name -> its colour."""


def chart_legend(
    lines: list[ChartLine],
    marks: list[ChartMark],
    view: ChartView,
    axis: Axis | None,
    room: int,
    glyphs: GlyphSet,
    style: ColourOf,
) -> Content:
    """Every line with its current mean, the held-out mark, and the visible letters with their meanings.

    Without enough room the letters are dropped first, then the figures; the line names stay.
    """
    with_mean = [
        (line, mean) for line in lines if (mean := line.series.tail_mean(line.smooth(view.smooth))) is not None
    ]
    percent = in_percent(lines)
    named = [_named(line, _value(mean, percent), glyphs, style) for line, mean in with_mean]
    bare = [_named(line, "", glyphs, style) for line, _ in with_mean]
    held = [Content.styled(f"{glyphs.mark} held-out", style("mark"))] if any(m.y is not None for m in marks) else []
    letters = _letters(marks, axis)
    words = [Content.styled(f"{letter} {word}", style("mark")) for letter, word in letters]
    wide = Content("  ").join(named + held + words)
    tight = [named + held + words, named + held, named, bare]
    return _first_that_fits([wide, *(Content(" ").join(parts) for parts in tight)], room)


def at_crosshair(
    lines: list[ChartLine],
    marks: list[ChartMark],
    view: ChartView,
    axis: Axis,
    columns: int,
    room: int,
    glyphs: GlyphSet,
    style: ColourOf,
) -> Content:
    """At the crosshair: round and time, each line's mean with its range, the held-out result and the milestones."""
    column = axis.column(view.cross or 0.0, columns) if columns > 0 else None
    if column is None or view.cross is None:
        return Content.styled("the crosshair is outside of what is seen", style("cross"))
    span = axis.spans(columns)[column]
    if span is None:
        return Content.styled(f"{format_weekday_time(view.cross)}: nothing ran", style("cross"))
    place = max(round(axis.round_at(axis.share(view.cross))), 1)
    at = f" {glyphs.dot} {format_weekday_time(view.cross)}" if axis.clock is not None else ""
    head = [Content.styled(f"{axis.counts.at(place).newest}{at}", style("cross"))]
    with_mean = [
        (line, mean) for line in lines if (mean := curve_value(line.series, span, line.smooth(view.smooth))) is not None
    ]
    percent = in_percent(lines)
    means = [_named(line, _value(mean, percent), glyphs, style) for line, mean in with_mean]
    ranges = [_named(line, _ranged(line, mean, span, view, percent), glyphs, style) for line, mean in with_mean]
    near = [m for m in marks if axis.column(_place(m, axis), columns) == column]
    tail = [
        Content.styled(f"{glyphs.mark} {_measurement(m, percent)}", style("mark")) for m in near[-1:] if m.y is not None
    ]
    tail += [Content.styled(f"{letter} {word}", style("mark")) for letter, word in _letters(near, axis)]
    rows = [head + ranges + tail, head + means + tail, head + means, means]
    return _first_that_fits([Content("  ").join(parts) for parts in rows], room)


def _first_that_fits(texts: list[Content], room: int) -> Content:
    return next((text for text in texts if text.cell_length <= room), texts[-1])


def _place(mark: ChartMark, axis: Axis) -> float:
    return axis.place(axis.share_of_round(mark.x, mark.time))


def _value(value: float | None, percent: bool) -> str:
    return format_share(value, 1) if percent else format_reward_value(value)


def _ranged(line: ChartLine, mean: float, span: Span, view: ChartView, percent: bool) -> str:
    """The mean, with the range of the values."""
    spread = line.series.spread(min(span[0], span[1] - line.smooth(view.smooth) + 1), span[1])
    if spread is None or spread.low == spread.high:
        return _value(mean, percent)
    return f"{_value(mean, percent)} ({_value(spread.low, percent)} to {_value(spread.high, percent)})"


def _measurement(mark: ChartMark, percent: bool) -> str:
    interval = f" (95 %: {_value(mark.low, percent)} to {_value(mark.high, percent)})" if mark.low is not None else ""
    return _value(mark.y, percent) + interval


def _named(line: ChartLine, value: str, glyphs: GlyphSet, style: ColourOf) -> Content:
    return Content.styled(f"{pattern_sample(line.pattern, glyphs)} {line.label} {value}".rstrip(), style(line.style))


def _letters(marks: list[ChartMark], axis: Axis | None) -> list[tuple[str, str]]:
    """(letter, meaning) of the visible letters, most important first."""
    if axis is None:
        return []
    visible = {m.letter for m in marks if m.y is None and 0 <= axis.share_of_round(m.x, m.time) <= 1}
    return [(letter, word) for letter, word in MEANINGS.items() if letter in visible]


# Lines, title and marks of a chart from a run's metrics.

LEARNED, REWARDS = "Examples: how likely right answers are", {"local", "judged", "external"}
"""Title of the reward chart before practice, and the lines that are rewards."""


def examples_lines(figures: RunMetrics) -> list[ChartLine]:
    """If there were examples: how likely the model found their right answers, and the share of correct answers on the rows set
    aside."""
    set_aside = ChartLine("set aside", figures.set_aside, "dotted", "line-3", share=True)
    likelihood = ChartLine("likelihood", figures.likelihood, "dashed", "line-3", share=True)
    return [line for line in (set_aside, likelihood) if not line.series.empty]


def reward_title(lines: list[ChartLine], name: str = "") -> str:
    """Before practice there is no reward: what is drawn then is how the examples are learned. name: of a model, comes first."""
    drawn = {line.label for line in lines if not line.series.empty}
    if drawn and not drawn & REWARDS:
        return f"{name}, {LEARNED[0].lower()}{LEARNED[1:]}" if name else LEARNED
    return f"{name}: reward" if name else "Reward"


def heldout_marks(figures: RunMetrics) -> list[ChartMark]:
    """Held-out results with their intervals; the base's at round 0, as far as it is known."""
    held = figures.held_out
    lows, highs = held.low.buckets(), held.high.buckets()
    together = zip(held.mean.buckets(), lows, highs, strict=True)
    marks = [ChartMark(x, y, low, high) for (_, x, y), (_, _, low), (_, _, high) in together]
    if held.base is not None and not any(mark.x == 0 for mark in marks):
        marks.insert(0, ChartMark(0, *held.base))
    return marks


# The chart widget: draws `plot` into cached strips and repaints only when its data or its size changed.

SMOOTHS = (20, 50, 1, 5)


class Chart(Widget):
    """A titled line chart. `show` gives it data; it keeps its window, smoothing and frozen state itself."""

    STYLES: ClassVar[tuple[str, ...]] = ("axis", "mark", "line-1", "line-2", "line-3", "empty", "band", "cross")
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"chart--{name}" for name in STYLES}

    class Pointed(Message):
        """The pointer is over a chart, at a round (or time); None: it has left."""

        def __init__(self, place: float | None) -> None:
            super().__init__()
            self.place = place

    class Wheeled(Message):
        """The wheel was turned over a chart: steps to zoom in (negative: out) at a share of its width."""

        def __init__(self, steps: int, share: float) -> None:
            super().__init__()
            self.steps, self.share = steps, share

    class Dragged(Message):
        """A chart was dragged to the right by a share of its width."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, title: str, glyphs: GlyphSet = UNICODE, id: str | None = None) -> None:
        super().__init__(id=id)
        self.title_text = title
        self.glyphs = glyphs
        self.view = ChartView()
        self.frozen = False
        self.lines: list[ChartLine] = []
        self.marks: list[ChartMark] = []
        self.waiting = ""
        self.clock: RoundClock | None = None
        self.counts = ROUNDS_ONLY
        self._grabbed: int | None = None
        self._strips: list[Strip] = []
        self._drawn: object = None
        self._painted: tuple[Style, ...] = ()

    def show(
        self,
        lines: list[ChartLine],
        marks: list[ChartMark],
        waiting: str = "",
        title: str = "",
        clock: RoundClock | None = None,
        counts: TrainingCounts = ROUNDS_ONLY,
    ) -> None:
        """Set new data; ignored while frozen. waiting: the sentence shown without data. clock: for a time axis. counts: what
        the numbers on the axis are called."""
        if self.frozen:
            return
        self.lines, self.marks, self.waiting = lines, marks, waiting
        self.clock, self.counts = clock, counts
        self.title_text = title or self.title_text
        self._redraw()

    @property
    def axis(self) -> Axis | None:
        """The visible part of the x axis; None without data."""
        return axis_for(self.lines, self.marks, self.view, self.clock, self.counts)

    def zoom(self, steps: int, share: float | None = None) -> None:
        """Zoom. steps: +1 halves the window, -1 doubles it, 0 shows all. share: the share of the width that stays fixed."""
        self._look(zoom_view(self.view, self.axis, steps, share))

    def pan(self, share: float) -> None:
        """Move the window right by `share` of its length (negative: left)."""
        self._look(pan_view(self.view, self.axis, share))

    def toggle_time(self) -> None:
        """Switch between a time axis and rounds, and show all of it."""
        self._look(replace(self.view, timed=not self.view.timed, window=0, end=None, cross=None))

    def toggle_band(self) -> None:
        """Show or hide the smallest and largest values beside the mean."""
        self._look(replace(self.view, band=not self.view.band))

    def point(self, place: float | None) -> None:
        """Put the crosshair at a round (or time); None removes it."""
        if place != self.view.cross:
            self._look(replace(self.view, cross=place))

    def next_smoothing(self) -> None:
        """Switch to the next width of the moving mean."""
        place = (SMOOTHS.index(self.view.smooth) + 1) % len(SMOOTHS)
        self._look(replace(self.view, smooth=SMOOTHS[place]))

    def toggle_frozen(self) -> None:
        """Freeze or unfreeze the chart."""
        self.frozen = not self.frozen
        self._redraw(force=True)

    def _look(self, view: ChartView) -> None:
        self.view = view
        self._redraw(force=True)

    def _redraw(self, force: bool = False) -> None:
        """Rebuild the strips if their content changed."""
        key = (self.content_size, self.waiting, self.title_text, *(line.series for line in self.lines), *self.marks)
        if not self.is_mounted or not self.content_size or (not force and key == self._drawn):
            return
        self._drawn = key
        self._titles()
        self._strips = self._paint(self.content_size)
        self.refresh()

    def _titles(self) -> None:
        view, glyphs = self.view, self.glyphs
        mean = smoothing_words(self.lines, view, self.counts)
        room = self.size.width - len(self.title_text) - 8 - (12 if self.frozen else 0)
        whole = f"{mean} {glyphs.dot} {self._window()}"
        detail = [next((text for text in (whole, mean) if len(text) <= room), "")] if self.size.width >= 46 else []
        rest = "".join(f"  {part}" for part in (["FROZEN (f)"] if self.frozen else []) + detail if part)
        self.border_title = Content.assemble((self.title_text, "bold"), (rest, "$muted"))
        axis, room = self.axis, self.size.width - 4
        self.border_subtitle = (
            chart_legend(self.lines, self.marks, view, axis, room, glyphs, self._style)
            if view.cross is None or axis is None
            else at_crosshair(
                self.lines, self.marks, view, axis, columns_of(self.content_size.width), room, glyphs, self._style
            )
        )

    def _window(self) -> str:
        """The title's words about the visible part."""
        view, axis = self.view, self.axis
        timed = axis is not None and axis.clock is not None
        if not view.window or axis is None:
            if timed:
                return "all, in time"
            done = self.counts.now
            return "all steps" + " and rounds" * (done.rounds > 0) if done.steps else "all rounds"
        size = format_time_span(axis.last - axis.first) if timed else f"{axis.last - axis.first:.0f}"
        if view.end is None:
            return f"last {size}"
        return f"{size} of them" if timed else f"{axis.label(axis.first)} to {axis.label(axis.last)}"

    def _style(self, name: str) -> str:
        """The component's colour as a style of Content."""
        return self.get_component_styles(f"chart--{name}").color.hex

    def _paint(self, size: Size) -> list[Strip]:
        self._painted = self._palette()
        styles = dict(zip(self.STYLES, self._painted[1:], strict=True))
        rows = draw_plot(
            self.lines, self.marks, self.view, size.width, size.height, self.glyphs, self.clock, self.counts
        )
        if not rows:
            return self._message(size, styles["empty"])
        back = self.rich_style
        # Every character is one cell wide. Measuring would keep each row in rich's cache: 3 MB of rows that never recur.
        return [
            Strip(
                [Segment(text, back + styles[name]) for text, name in runs], sum(len(text) for text, _ in runs)
            ).adjust_cell_length(size.width, back)
            for runs in rows
        ]

    def _message(self, size: Size, style: Style) -> list[Strip]:
        lines = wrap_text(self.waiting, max(size.width - 4, 1))[: size.height]
        top = max((size.height - len(lines)) // 2, 0)
        blank = Strip.blank(size.width, self.rich_style)
        shown = [Strip([Segment(line.center(size.width), self.rich_style + style)]) for line in lines]
        return [blank] * top + shown + [blank] * max(size.height - top - len(shown), 0)

    def render_line(self, y: int) -> Strip:
        """One cached row."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    # The mouse: reported to the screen, which applies it to all its charts.

    def _share(self, x: int) -> float:
        """Share of the plot's width at a column of this widget (column 0 is the border)."""
        columns = max(columns_of(self.content_size.width), 1)
        return min(max((x - 1 - (self.content_size.width - columns) + 0.5) / columns, 0.0), 0.999)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The crosshair follows the pointer; with the button down, the chart does."""
        if self._grabbed is not None and event.button:
            if step := event.x - self._grabbed:
                self._grabbed = event.x
                self.post_message(self.Dragged(step / max(columns_of(self.content_size.width), 1)))
        else:
            axis = self.axis
            self.post_message(self.Pointed(axis.place(self._share(event.x)) if axis else None))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start dragging the chart."""
        self._grabbed = event.x

    def on_mouse_up(self) -> None:
        """Stop dragging."""
        self._grabbed = None

    def on_leave(self) -> None:
        """Report that the pointer has left."""
        self._grabbed = None
        self.post_message(self.Pointed(None))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in around the pointer."""
        event.stop()
        self.post_message(self.Wheeled(1, self._share(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out around the pointer."""
        event.stop()
        self.post_message(self.Wheeled(-1, self._share(event.x)))

    def on_resize(self) -> None:
        """Redraw for the new size."""
        self._redraw(force=True)

    def notify_style_update(self) -> None:
        """Called far more often than styles change, so repaint only if the palette changed."""
        super().notify_style_update()
        if self._drawn is not None and self._palette() != self._painted:
            self._redraw(force=True)

    def _palette(self) -> tuple[Style, ...]:
        return (self.rich_style, *(self.get_component_rich_style(f"chart--{name}") for name in self.STYLES))
