"""Answers that are shown while they are written: how many tokens are generated between two looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CUT = "[cut: no room for more]"
"""Behind an answer that did not end by itself."""
NEXT = "/next"
"""In place of a question: the next held-out one."""
ALL_ASKED = "These were all held-out questions of its tasks."


class ChatChunk(NamedTuple):
    """of: which of the two, 0 the base. text: its answer so far. cut: it had no more room, and ends here."""

    of: int
    text: str
    cut: bool = False


class HeldOut(NamedTuple):
    """A held-out question that both answer next. number: from 1. text: as it is shown. right: the answer that its task knows,
    "" where it knows none."""

    number: int
    task: str
    text: str
    right: str


class Marks(NamedTuple):
    """What the verifier gives both answers to a held-out question. rewards: from 0 to 1, those of base and trained; none where
    problem says why there is no verdict. right: how many of the `asked` questions so far each had right."""

    rewards: tuple[float, ...]
    right: tuple[int, ...]
    asked: int
    problem: str = ""


def format_reward(reward: float) -> str:
    """A reward in a word: partly right answers have their share."""
    return "right" if reward == 1.0 else f"{100 * reward:.0f} %" if reward else "wrong"


def format_tally(labels: Sequence[str], marks: Marks) -> str:
    """How many questions each had right so far."""
    return ", ".join(
        f"{label} {right} of {marks.asked} right" for label, right in zip(labels, marks.right, strict=True)
    )


FIRST_PIECE = 8
"""Tokens of the first pieces;"""
PART = 8
"""later ones are one part in so many of what is written."""


def next_piece(written: int) -> int:
    """Each piece computes prompt and answer again, so they grow: 4,096 tokens come in 45 pieces, which is linear work."""
    return max(FIRST_PIECE, written // PART)
