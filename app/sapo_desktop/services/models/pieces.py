"""Answers shown while they are generated: how many tokens are generated between two updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CUT = "[cut here: it went on]"
"""Shown after an answer that did not end by itself."""
NEXT = "/next"
"""Typed instead of a question: the next held-out one."""
STOP = "/stop"
"""On the input of `chat --json`: the answer being written ends here. What was asked after it follows."""
ALL_ASKED = "These were all held-out questions of its tasks."


class ChatChunk(NamedTuple):
    """of: which of the two models, 0 is the base. text: its answer so far. cut: it did not end by itself and
    is cut here."""

    of: int
    text: str
    cut: bool = False


class HeldOut(NamedTuple):
    """A held-out question that both answer next. number: from 1. text: as shown. right: the task's right answer, "" where it
    knows none."""

    number: int
    task: str
    text: str
    right: str


class Marks(NamedTuple):
    """The verifier's rewards for both answers to a held-out question. rewards: from 0 to 1, for base and trained; empty where
    problem says why there is no verdict. right: how many of the `asked` questions so far each got right."""

    rewards: tuple[float, ...]
    right: tuple[int, ...]
    asked: int
    problem: str = ""


ChatPart = ChatChunk | HeldOut | Marks
KINDS: Mapping[type[ChatPart], str] = {ChatChunk: "answer", HeldOut: "held_out", Marks: "marks"}
"""What a part of a chat is called in `chat --json`, whatever its class is called here."""


def to_message(part: ChatPart) -> dict[str, Any]:
    """The part as an object of `chat --json`."""
    return {"kind": KINDS[type(part)], **part._asdict()}


def from_message(message: Mapping[str, Any]) -> ChatPart:
    """The part in an object of `chat --json`; one without a kind is of an answer. Raises KeyError for what is none."""
    by_name = {name: kind for kind, name in KINDS.items()}
    kind = by_name[message.get("kind", KINDS[ChatChunk])]
    if kind is Marks:
        rewards, right, asked, problem = (message[name] for name in Marks._fields)
        return Marks(tuple(rewards), tuple(right), asked, problem)
    if kind is HeldOut:
        return HeldOut(*(message[name] for name in HeldOut._fields))
    return ChatChunk(int(message["of"]), str(message["text"]), message["cut"] is True)


def format_reward(reward: float) -> str:
    """A reward as a word; partly right answers with their share."""
    return "right" if reward == 1.0 else f"{100 * reward:.0f} %" if reward else "wrong"


def format_tally(labels: Sequence[str], marks: Marks) -> str:
    """How many questions each got right so far."""
    return ", ".join(
        f"{label} {right} of {marks.asked} right" for label, right in zip(labels, marks.right, strict=True)
    )


FIRST_PIECE = 8
"""Tokens of the first pieces;"""
PART = 8
"""later pieces are one in this many of the tokens so far."""


def next_piece(written: int) -> int:
    """Each piece recomputes prompt and answer, so pieces grow: 4,096 tokens come in 45 pieces, which is linear work."""
    return max(FIRST_PIECE, written // PART)
