"""Answers that are shown while they are written: how many tokens are generated between two looks."""

from __future__ import annotations

from typing import NamedTuple

CUT = "[cut: no room for more]"
"""Behind an answer that did not end by itself."""


class Said(NamedTuple):
    """of: which of the two, 0 the base. text: its answer so far. cut: it had no more room, and ends here."""

    of: int
    text: str
    cut: bool = False


FIRST_PIECE = 8
"""Tokens of the first pieces;"""
PART = 8
"""later ones are one part in so many of what is written."""


def next_piece(written: int) -> int:
    """Each piece computes prompt and answer again, so they grow: 4,096 tokens come in 45 pieces, which is linear work."""
    return max(FIRST_PIECE, written // PART)
