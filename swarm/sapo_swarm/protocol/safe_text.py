"""The one gate between peer text and a terminal, a log or a file name."""

from __future__ import annotations

import unicodedata

_KEEP = {"\n"}
_BLANK = set("\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u2800\u3164\uffa0")
"""Characters of other categories that show nothing."""
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
