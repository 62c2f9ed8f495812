"""When to say that rounds teach nothing or are slow, and why. Light: the dashboard shows the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sapo_swarm.events import LogLine, RoundFinished

if TYPE_CHECKING:
    from sapo_backends.base import Completion

CROWDED = " · slow: other programs use the processor"
"""What a status ends with while other programs have most of the processor."""

# When to say that many answers were cut off at the token limit, so that nothing can be learned from them.

CUT_OFF = 0.2
"""From this share of a round's completions on, the log says so."""
SAID_EVERY = 25
"""Rounds between two such messages."""


def cut_off(completions: Sequence[Sequence[Completion]], number: int) -> list[LogLine]:
    """The message, in some rounds, when many of a round's answers have no end. completions: of every group."""
    flat = [c for group in completions for c in group]
    share = sum(c.finish == "length" for c in flat) / max(1, len(flat))
    if share <= CUT_OFF or number % SAID_EVERY:
        return []
    text = (
        f"{100 * share:.0f} % of the answers were cut off at the token limit and earned nothing: raise max_new_tokens (one "
        "task's: task_tokens) if right ones need more, or set thinking = off if the model has a switch for its reasoning."
    )
    return [LogLine(level="warning", text=text)]


# When to say that practice teaches nothing, and why: no question had both right and wrong answers for several rounds.

ROUNDS = 3
"""After this many rounds in a row with nothing to learn from, it is said once, until that changes."""
MOSTLY_RIGHT = 0.8
"""From this share of right answers on, equal rewards mean that there is little left to learn."""
MASTERED = (
    f"Finished: all training answers right for {ROUNDS} rounds · practice has nothing to learn from · space goes on"
)
"""What a run without a number of rounds says when it pauses for this."""
CAUSE = 0.5
"""From this share of the answers on, a fault counts as the cause."""


def cause_in_words(right: float, well_formed: float, truncated: float) -> str:
    """Why a model's answers teach nothing, as the middle of a sentence. Arguments: shares of the answers that are right, that
    hold an answer, that were cut off."""
    if right >= MOSTLY_RIGHT:
        return f"{'all' if right >= 1.0 else 'nearly all'} answers to training questions are right"
    if well_formed < CAUSE and truncated >= CAUSE:
        return "most answers are cut off at the token limit before they end with an answer"
    if well_formed < CAUSE:
        few = "most answers have not" if well_formed else "no answer has"
        return f"{few} the form that the task asks for"
    return (
        "the answers to a question are all right or all wrong"
        if right
        else "answers have the right form, but all are wrong"
    )


def remedy_in_words(right: float, well_formed: float, truncated: float, presets: bool) -> str:
    """What to change, as a sentence. presets: whether the tasks have presets of difficulty; a table of one's own has none."""
    if right >= MOSTLY_RIGHT:
        return f"Harder {'questions (--preset hard)' if presets else 'rows'} would teach it more."
    if well_formed < CAUSE and truncated >= CAUSE:
        return "Raise max_new_tokens, or ask for a shorter answer."
    if well_formed < CAUSE:
        return "Let it see examples first (--examples only), or choose a base that follows instructions."
    return "Let it see examples first (--examples only), choose easier questions, or a larger base."


class StallDetector:
    """Follows the rounds of practice. notice: what the status adds to its sentence; "" while there is something to learn.
    mastered: this very round is the last of ROUNDS in which all answers were right. presets: see remedy_in_words()."""

    def __init__(self, presets: bool = True) -> None:
        self._presets = presets
        self.notice = ""
        self.mastered = False
        self._rounds = self._right = 0

    def after(self, event: RoundFinished) -> list[LogLine]:
        """The log lines for this round, mostly none."""
        if not _taught_nothing(event):
            self._rounds, self.notice, self._right, self.mastered = 0, "", 0, False
            return []
        self._rounds += 1
        self._right = self._right + 1 if event.reward_local == 1.0 else 0
        self.mastered = self._right == ROUNDS
        if self._rounds != ROUNDS:
            return []
        count = max(1, event.completions)
        shares = event.reward_local or 0.0, event.well_formed / count, event.truncated / count
        why = cause_in_words(*shares)
        self.notice = f" · nothing to learn for {ROUNDS} rounds: {why}"
        text = (
            f"Nothing to learn for {ROUNDS} rounds: no question had both right and wrong answers, because {why}. "
            f"{remedy_in_words(*shares, self._presets)}"
        )
        return [LogLine(level="info" if shares[0] >= MOSTLY_RIGHT else "warning", text=text)]


def _taught_nothing(event: RoundFinished) -> bool:
    others = event.external_groups or "replayed" in event.figures
    return bool(event.local_groups) and not event.nonzero_groups and not others
