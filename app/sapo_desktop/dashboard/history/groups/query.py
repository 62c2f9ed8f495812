"""Which groups are wanted, and what the index knows of a group to answer that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, get_args
from unicodedata import normalize

from sapo_swarm.events import GroupRecorded

Reward = Literal["", "all right", "mixed", "none right"]
Source = Literal["", "local", "external"]
Trained = Literal["", "trained on", "not trained on"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
SOURCES: tuple[Source, ...] = get_args(Source)
TRAINED: tuple[Trained, ...] = get_args(Trained)

_BITS = ("local", "external", "all right", "mixed", "none right", "first solved", "trained on", "not trained on")
_BIT = {name: 1 << place for place, name in enumerate(_BITS)}
_FLAG, _TASK = "\ue000", "\ue001"
"""Private characters that begin the index's own words: no text holds one when it is indexed or asked for."""
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = (  # Thai and Lao, Burmese, Khmer, Japanese and Chinese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Signs of scripts without blanks between words: there every two in a row are a word of the index, and the last one alone."""
_RUN = re.compile(f"{_UNSPACED}+")
MAX_WORDS = 16


@dataclass(frozen=True)
class GroupFilter:
    """ "" everywhere: all groups. reward "mixed": rewards that are not all equal. text: words; the last may be unfinished."""

    task: str = ""
    source: Source = ""
    reward: Reward = ""
    trained: Trained = ""
    first_solved: bool = False
    text: str = ""

    @property
    def flags(self) -> int:
        """The bits that a group must have, see flags_of."""
        names = [self.source, self.reward, self.trained, "first solved" if self.first_solved else ""]
        return sum(_BIT[name] for name in names if name)

    @property
    def words(self) -> list[str]:
        """What is looked for in the texts, at most MAX_WORDS words."""
        return _WORD.findall(_in_words(self.text))[:MAX_WORDS]

    def match(self, task: int) -> str:
        """The filter for the index's full-text table; task: its number there, if one is wanted."""
        *whole, last = self.words
        unfinished = normalize("NFC", self.text)[-1:].isalnum()
        words = [f'"{word}"*' if re.fullmatch(_UNSPACED, word) else f'"{word}"' for word in whole]
        words.append(f'"{last}"*' if unfinished else f'"{last}"')
        if self.task:
            words.append(f'"{_TASK}{task}"')
        return " ".join([*words, *(f'"{_FLAG}{bit}"' for bit in _set(self.flags))])

    def describe(self) -> str:
        """The filter in words: only what is left out, where anything is."""
        parts = [self.task, self.source, self.reward, self.trained, "first solved" if self.first_solved else ""]
        set_ones = [part for part in (*parts, f"“{self.text}”" if self.text else "") if part]
        return " · ".join(set_ones or ["all tasks", "local and external", "any reward"])


def flags_of(event: GroupRecorded) -> int:
    """What is known of a group besides its task, a bit each."""
    group, rewards = event.group, event.group.rewards
    names = ["external" if group.external else "local", "trained on" if event.trained else "not trained on"]
    names += ["all right"] if min(rewards, default=0.0) >= 1 else []
    names += ["none right"] if max(rewards, default=0.0) <= 0 else []
    names += ["mixed"] if group.nonzero_advantage else []
    names += ["first solved"] if event.first_solved else []
    return sum(_BIT[name] for name in names)


def indexed_text(event: GroupRecorded, task: int) -> str:
    """What the full-text table gets of a group: its texts, and its task and flags as words of their own."""
    group = event.group
    texts = [group.question.prompt, *(rollout.text for rollout in group.rollouts)]
    texts += [turn.text for rollout in group.rollouts for turn in rollout.turns if turn.environment]
    own = [f"{_TASK}{task}", *(f"{_FLAG}{bit}" for bit in _set(flags_of(event)))]
    return _in_words(" ".join(texts)).replace("_", " ") + " " + " ".join(own)


def _in_words(text: str) -> str:
    """Without the index's own signs, accents composed, blanks between the words of every script."""
    if text.isascii():  # most are
        return text
    return _RUN.sub(_pairs, normalize("NFC", text.replace(_FLAG, " ").replace(_TASK, " ")))


def _pairs(run: re.Match[str]) -> str:
    return " ".join(["", *map("".join, zip_longest(run[0], run[0][1:], fillvalue="")), ""])


def _set(flags: int) -> Iterator[int]:
    return (bit for bit in range(len(_BITS)) if flags >> bit & 1)
