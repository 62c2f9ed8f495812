"""The one gate between peer text and a terminal, a log or a file name."""

from __future__ import annotations

import unicodedata

_KEEP = {"\n"}
_BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def safe_text(text: str, limit: int = 8192, lines: bool = True) -> str:
    """The text without anything a terminal would obey or a reader could be fooled by.

    Control characters (C0, DEL, C1), bidi controls, unpaired surrogates, private-use and unassigned code points
    become "·"; tabs become spaces; newlines stay only when lines is true (else "⏎"); longer text is cut with "…".
    The result still may hold markup: always show it as plain text, never parse it.
    """
    cut = text[:limit]
    out: list[str] = []
    for char in cut.replace("\r\n", "\n"):
        if char in _KEEP:
            out.append(char if lines else "⏎")
        elif char == "\t":
            out.append("    ")
        elif char in _BIDI or unicodedata.category(char) in {"Cc", "Cs", "Co", "Cn"} or char in "\u2028\u2029":
            out.append("·")
        else:
            out.append(char)
    return "".join(out) + ("…" if len(text) > limit else "")
