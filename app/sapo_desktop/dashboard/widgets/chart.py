"""The chart widget: draws `plot` into cached strips and repaints only when its data or its size changed."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from sapo_desktop.dashboard.look.glyphs import UNICODE, Glyphs
from sapo_desktop.dashboard.look.show import wrap
from sapo_desktop.dashboard.widgets.plot import Line, Mark, View, plot, sample

WINDOWS = (0, 2000, 600, 300, 120, 60, 30)
"""Rounds shown, from the widest (0: all) to the narrowest."""
SMOOTHS = (20, 50, 1, 5)


class Chart(Widget):
    """A titled line chart. `show` gives it data; window, smoothing and freezing are its own."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--axis",
        "chart--mark",
        "chart--line-1",
        "chart--line-2",
        "chart--line-3",
        "chart--empty",
    }
    STYLES: ClassVar[tuple[str, ...]] = ("axis", "mark", "line-1", "line-2", "line-3", "empty")

    def __init__(self, title: str, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(id=id)
        self.title_text = title
        self.glyphs = glyphs
        self.view = View()
        self.frozen = False
        self.lines: list[Line] = []
        self.marks: list[Mark] = []
        self.waiting = ""
        self._strips: list[Strip] = []
        self._drawn: object = None
        self._painted: tuple[Style, ...] = ()

    def show(self, lines: list[Line], marks: list[Mark], waiting: str = "", title: str = "") -> None:
        """New data; waiting: the sentence shown while there is none. Ignored while frozen."""
        if self.frozen:
            return
        self.lines, self.marks, self.waiting = lines, marks, waiting
        self.title_text = title or self.title_text
        self._redraw()

    def zoom(self, steps: int) -> None:
        """steps: +1 a shorter window, -1 a longer one, 0 back to all."""
        place = WINDOWS.index(self.view.window) + steps if steps else 0
        self._look(replace(self.view, window=WINDOWS[min(max(place, 0), len(WINDOWS) - 1)]))

    def next_smoothing(self) -> None:
        """The next width of the moving mean."""
        place = (SMOOTHS.index(self.view.smooth) + 1) % len(SMOOTHS)
        self._look(replace(self.view, smooth=SMOOTHS[place]))

    def toggle_frozen(self) -> None:
        """Hold the chart still, or let it go on."""
        self.frozen = not self.frozen
        self._redraw(force=True)

    def _look(self, view: View) -> None:
        self.view = view
        self._redraw(force=True)

    def _redraw(self, force: bool = False) -> None:
        """Rebuild the strips when what they show changed."""
        key = (self.content_size, self.waiting, self.title_text, *(line.series for line in self.lines), *self.marks)
        if not self.is_mounted or not self.content_size or (not force and key == self._drawn):
            return
        self._drawn = key
        self._titles()
        self._strips = self._paint(self.content_size)
        self.refresh()

    def _titles(self) -> None:
        view, glyphs = self.view, self.glyphs
        mean = f"mean of {view.smooth}" if view.smooth > 1 else "every round"
        window = f"last {view.window}" if view.window else "all rounds"
        detail = [f"{mean} {glyphs.dot} {window}"] if self.size.width >= 46 else []
        rest = "".join(f"  {part}" for part in (["FROZEN (f)"] if self.frozen else []) + detail)
        title = Content.assemble((self.title_text, "bold"), (rest, "$muted"))
        self.border_title = title
        parts: list[Content] = []
        for line in self.lines:
            if (value := line.series.tail_mean(view.smooth)) is not None:
                style = self._style(line.style)
                parts.append(Content.styled(f"{sample(line.pattern, glyphs)} {line.label} {_figure(value)}", style))
        if any(mark.y is not None for mark in self.marks):
            parts.append(Content.styled(f"{glyphs.mark} held-out", self._style("mark")))
        if any(mark.y is None for mark in self.marks):
            parts.append(Content.styled(f"{glyphs.change} changed", self._style("mark")))
        wide = Content("  ").join(parts)
        self.border_subtitle = wide if wide.cell_length <= self.size.width - 4 else Content(" ").join(parts)

    def _style(self, name: str) -> str:
        """The component's colour as a style of Content."""
        return self.get_component_styles(f"chart--{name}").color.hex

    def _paint(self, size: Size) -> list[Strip]:
        self._painted = self._palette()
        styles = dict(zip(self.STYLES, self._painted[1:], strict=True))
        rows = plot(self.lines, self.marks, self.view, size.width, size.height, self.glyphs)
        if not rows:
            return self._message(size, styles["empty"])
        back = self.rich_style
        return [
            Strip([Segment(text, back + styles[name]) for text, name in runs]).adjust_cell_length(size.width, back)
            for runs in rows
        ]

    def _message(self, size: Size, style: Style) -> list[Strip]:
        lines = wrap(self.waiting, max(size.width - 4, 1))[: size.height]
        top = max((size.height - len(lines)) // 2, 0)
        blank = Strip.blank(size.width, self.rich_style)
        shown = [Strip([Segment(line.center(size.width), self.rich_style + style)]) for line in lines]
        return [blank] * top + shown + [blank] * max(size.height - top - len(shown), 0)

    def render_line(self, y: int) -> Strip:
        """One cached row."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    def on_resize(self) -> None:
        """Plot anew."""
        self._redraw(force=True)

    def notify_style_update(self) -> None:
        """Called far more often than styles change: repaint only for another palette."""
        super().notify_style_update()
        if self._drawn is not None and self._palette() != self._painted:
            self._redraw(force=True)

    def _palette(self) -> tuple[Style, ...]:
        return (self.rich_style, *(self.get_component_rich_style(f"chart--{name}") for name in self.STYLES))


def _figure(value: float) -> str:
    """Three decimals without the leading zero: .291, 1.000."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0.") else text
