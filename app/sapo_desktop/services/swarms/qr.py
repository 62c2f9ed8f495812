"""A QR code as lines of half blocks: two modules a character, dark on light, with the quiet zone that scanners need."""

from __future__ import annotations

QUIET = 2
"""Modules around the code; the standard asks for 4, phones are content with 2."""


def lines(text: str) -> list[str]:
    """The code of `text`; "█" is a dark module above and below. Show it dark on a light ground."""
    import segno

    code = segno.make(text, error="l", micro=False, boost_error=False)
    rows = [list(map(bool, row)) for row in code.matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    glyphs = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    return ["".join(glyphs[pair] for pair in zip(*rows[i : i + 2], strict=True)) for i in range(0, len(rows), 2)]


def for_terminal(text: str) -> str:
    """The code with its colours: black on white, whatever the terminal's own are."""
    return "\n".join(f"\x1b[30;107m{line}\x1b[0m" for line in lines(text))
