"""Plain ASCII for terminals that cannot show more: every line is translated, cell by cell, as it is painted."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

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
