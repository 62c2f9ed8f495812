"""When to say that many answers were cut off at the token limit: nothing can be learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sapo_swarm.events import LogLine

if TYPE_CHECKING:
    from sapo_backends.base import Completion  # the dashboard reads CUT_OFF, and imports nothing of the engines

CUT_OFF = 0.2
"""Share of a round's completions from which on the log says so."""
SAID_EVERY = 25
"""Rounds."""


def cut_off(completions: Sequence[Sequence[Completion]], number: int) -> list[LogLine]:
    """What to say, in some rounds, when many answers of a round have no end. completions: of every group."""
    flat = [c for group in completions for c in group]
    share = sum(c.finish == "length" for c in flat) / max(1, len(flat))
    if share <= CUT_OFF or number % SAID_EVERY:
        return []
    text = (
        f"{100 * share:.0f} % of the answers were cut off at the token limit and earned nothing: raise max_new_tokens (one "
        "task's: task_tokens), or set thinking = off if the model has a switch for its reasoning."
    )
    return [LogLine(level="warning", text=text)]
