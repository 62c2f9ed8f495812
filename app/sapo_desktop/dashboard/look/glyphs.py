"""Glyph sets: braille and line drawing where the terminal can, plain ASCII where it cannot, cell by cell."""

from __future__ import annotations

import locale
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

# Glyph sets: braille and line drawing where the terminal can, plain ASCII where it cannot.


@dataclass(frozen=True)
class Glyphs:
    """bars: sparkline levels from empty to full. steps: phase marks."""

    ascii: bool
    bars: str
    full: str
    empty: str
    done: str
    bad: str
    now: str
    todo: str
    right: str
    wrong: str
    partial: str
    cut: str
    star: str
    mark: str
    interval: str
    dot: str
    vertical: str
    tick: str
    corner: str
    horizontal: str
    arrow: str
    dash: str


UNICODE = Glyphs(
    ascii=False,
    bars="▁▂▃▄▅▆▇█",
    full="━",
    empty="─",
    done="✓",
    bad="✗",
    now="▶",
    todo="·",
    right="●",
    wrong="○",
    partial="◐",
    cut="◌",
    star="★",
    mark="◆",
    interval="┊",
    dot="·",
    vertical="│",
    tick="┤",
    corner="└",
    horizontal="─",
    arrow="→",
    dash="—",
)
ASCII = Glyphs(
    ascii=True,
    bars="_.:-=+*#",
    full="#",
    empty=".",
    done="x",
    bad="!",
    now=">",
    todo=".",
    right="1",
    wrong="0",
    partial="%",
    cut="~",
    star="*",
    mark="@",
    interval=":",
    dot="-",
    vertical="|",
    tick="+",
    corner="+",
    horizontal="-",
    arrow="->",
    dash="-",
)


def choose(name: str = "auto") -> Glyphs:
    """auto: ASCII on the Linux console, dumb terminals and non-UTF-8 locales. Raises ValueError."""
    if name == "auto":
        encoding = locale.getpreferredencoding(False).lower().replace("-", "")
        poor = os.environ.get("TERM", "") in ("linux", "dumb") or encoding not in ("utf8", "cp65001")
        name = "ascii" if poor else "unicode"
    if name not in ("unicode", "ascii"):
        raise ValueError(f"There is no glyph set {name!r}. Known: auto, unicode, ascii.")
    return ASCII if name == "ascii" else UNICODE


def sparkline(values: Iterable[float | None], width: int, glyphs: Glyphs) -> str:
    """One row of bars, right-aligned in `width`; gaps are blanks; the scale is the bars' own range.

    Of more values than fit, a bar is the mean of its share.
    """
    points = list(values)
    bars = min(width, len(points))
    edges = [len(points) * bar // bars for bar in range(bars + 1)] if bars else []
    cells = [mean_of(points[first:last]) for first, last in pairwise(edges)]
    known = [value for value in cells if value is not None]
    if not known:
        return " " * width
    low, high = min(known), max(known)
    span = high - low
    top = len(glyphs.bars) - 1
    text = "".join(
        " " if value is None else glyphs.bars[round((value - low) / span * top) if span > 0 else top // 2]
        for value in cells
    )
    return text.rjust(width)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# Plain ASCII for terminals that cannot show more: every line is translated, cell by cell, as it is painted.

_LOOKS_LIKE = {
    "·": "-",
    "…": "~",
    "—": "-",
    "–": "-",
    "‖": "=",
    "▶": ">",
    "◂": "<",
    "▸": ">",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "v",
    "↔": "=",
    "✓": "x",
    "✗": "!",
    "°": " ",
    "±": "~",
    "×": "x",
    "“": '"',
    "”": '"',
    "’": "'",
    "∧": "&",
    "∨": "|",
    "¬": "!",
    "⏎": "/",
    "┊": ":",
    "◆": "@",
}
_ACROSS, _DOWN = "─━┄┅┈┉╌╍═╴╶╸╺╼╾", "│┃┆┇┋╎╏║╵╷╹╻╽╿"
"""Lines of frames. Others with a corner become a plus, blocks a number sign; what else is not here a question mark."""
_LOOKS_LIKE |= dict.fromkeys(_ACROSS, "-") | dict.fromkeys(_DOWN, "|")


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """The text in printable ASCII, as many cells wide as before."""
    return text if text.isascii() else "".join(_cells(char) for char in text)


def _cells(char: str) -> str:
    if char.isascii():
        return char
    other = "+" if "\u2500" <= char <= "\u257f" else "#" if "\u2580" <= char <= "\u259f" else "?"
    known = _LOOKS_LIKE.get(char, other)
    return known.ljust(cell_len(char), known)[: cell_len(char)]


class AsciiFilter(LineFilter):
    """Translates the text of every segment; control segments stay as they are."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual passes it
        """The segments with their text in ASCII, as wide as before."""
        return [
            segment if segment.control or segment.text.isascii() else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]
