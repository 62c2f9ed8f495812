"""The grid of cells that a plot draws into, and what can be drawn: lines by pattern, marks, their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look.glyphs import Glyphs

Pattern = Literal["solid", "dashed", "dotted"]
Run = tuple[str, str]
"""Text and the name of its style: "axis", "mark", or the name of a line's style."""

_PERIOD: dict[Pattern, tuple[int, int]] = {"solid": (1, 1), "dashed": (6, 4), "dotted": (4, 1)}
"""Dot columns of a period, and how many of them are drawn."""
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII_POINT: dict[Pattern, str] = {"solid": "*", "dashed": "=", "dotted": "."}


@dataclass(frozen=True)
class Line:
    """One figure: its label, its series, how it is drawn and in which style. share: a share over a window of its own, drawn
    as it was told (no moving mean) and written in percent."""

    label: str
    series: Series
    pattern: Pattern = "solid"
    style: str = "line-1"
    share: bool = False

    def smooth(self, wanted: int) -> int:
        """Width of the moving mean that it is drawn with."""
        return 1 if self.share else wanted


@dataclass(frozen=True)
class Mark:
    """A single measurement at round x, drawn as a glyph of its own over the lines, with its interval from low to high. Without
    a y something that happened, a letter on the axis. time: Unix seconds of it, 0 = when round x ended."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    letter: str = ""
    time: float = 0.0


class Canvas:
    """A grid of cells; each keeps the dots or the character on it and the style of whoever drew last."""

    def __init__(self, columns: int, rows: int, low: float, high: float, glyphs: Glyphs) -> None:
        self.columns, self.rows, self.glyphs = columns, rows, glyphs
        self.low, self.high = low, high
        self.dots = [[0] * columns for _ in range(rows)]
        self.chars = [[""] * columns for _ in range(rows)]
        self.styles = [["axis"] * columns for _ in range(rows)]
        self.behind: list[dict[int, Run]] = [{} for _ in range(rows)]

    def draw(self, curve: list[float | None], line: Line) -> None:
        """A line, one value a dot column (in ASCII a cell); None is a gap."""
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

    def mark(self, column: int, mark: Mark) -> None:
        """The glyph, and its interval behind the lines."""
        assert mark.y is not None
        if mark.low is not None and mark.high is not None:
            for row in range(self._level(mark.high, self.rows), self._level(mark.low, self.rows) + 1):
                self.behind[row][column] = (self.glyphs.interval, "band")
        row = self._level(mark.y, self.rows)
        self.chars[row][column] = self.glyphs.mark
        self.styles[row][column] = "mark"

    def cross(self, column: int) -> None:
        """The crosshair's line, behind everything."""
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

    def _put(self, column: int, row: int, line: Line) -> None:
        self.chars[row][column] = _ASCII_POINT[line.pattern]
        self.styles[row][column] = line.style
