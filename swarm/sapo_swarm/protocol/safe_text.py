"""The single gate between peer text and a terminal, a log or a file name."""

from __future__ import annotations

import logging
import unicodedata

_KEEP = {"\n"}
_BLANK = {
    *"\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u2800\u3164\uffa0",
    *map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))),
}
"""Characters of other categories that show nothing; the ranges are variation selectors, in which text can be hidden."""
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn"}


def safe_text(text: str, limit: int = 8192, lines: bool = True) -> str:
    """The text without anything a terminal would obey or a reader could be fooled by.

    Control characters (C0, DEL, C1), bidi controls, invisible and zero-width characters, unpaired surrogates, private-use
    and unassigned code points become "·"; tabs become spaces; newlines stay only when lines is true (else "⏎"); longer
    text is cut with "…". The result still may hold markup: always show it as plain text, never parse it.
    """
    cut = text[:limit]
    out: list[str] = []
    for char in cut.replace("\r\n", "\n"):
        if char in _KEEP:
            out.append(char if lines else "⏎")
        elif char == "\t":
            out.append("    ")
        elif char in _BLANK or unicodedata.category(char) in _HIDDEN:
            out.append("·")
        else:
            out.append(char)
    return "".join(out) + ("…" if len(text) > limit else "")


def is_plain_name(name: str) -> bool:
    """A name that looks like what it is: nothing unsafe in it, no spaces around it, no accent applied to what precedes it."""
    return safe_text(name, lines=False) == name == name.strip() and not unicodedata.combining(name[:1] or "a")


class SafeFormatter(logging.Formatter):
    """Formats log lines as safe_text, whoever's text a message or a traceback quotes."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, safe to show."""
        return safe_text(super().format(record), 65_536)
