"""The fake engine's model: a table of logits that really is a policy and really learns.

logits(next | prompt, previous token) = table[kind of prompt, class of previous token]
                                        + trust[class] * (next == the answer that plain rules find in the prompt)

The table learns which answers a kind of question tends to have; `trust` learns to use the rule's answer. It begins
low, so that a group holds right and wrong completions and the reward curve has somewhere to go.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sapo_backends.fake import tokenizer as vocab

KINDS = 16
START, AFTER_OPEN, AFTER_ANSWER, AFTER_CLOSE, OTHER = range(5)
CLASSES = 5
NO_HINT = -1
UNLIKELY = -9.0
FIRST_TRUST = 4.0

_SUM = re.compile(r"^[\d\s()+-]+$")
_DATE = re.compile(r"([A-Z][a-z]+ \d{1,2}, \d{4})")
_tokenizer = vocab.FakeTokenizer()


def _weekday(text: str) -> str | None:
    found = _DATE.search(text)
    if found is None or "day of the week" not in text:
        return None
    try:
        return vocab.WEEKDAYS[datetime.strptime(found.group(1), "%B %d, %Y").weekday()]
    except ValueError:
        return None


def _sum(text: str) -> str | None:
    found = re.search(r"Calculate (.+?)\.?$", text.strip())
    if found is None or not _SUM.match(found.group(1)) or "(" in found.group(1):
        return None
    terms = re.findall(r"([+-]?)\s*(-?\d+)", found.group(1))
    return str(sum(-int(value) if sign == "-" else int(value) for sign, value in terms))


def _fraction(text: str) -> str | None:
    found = re.search(r"fraction (\d{1,4})/(\d{1,4})", text)
    return (
        None if found is None or int(found.group(2)) == 0 else str(Fraction(int(found.group(1)), int(found.group(2))))
    )


@dataclass(frozen=True, slots=True)
class Features:
    """kind: row of the table. hint: token of the rules' answer, or NO_HINT."""

    kind: int
    hint: int


@lru_cache(maxsize=4096)
def features(prompt: tuple[int, ...]) -> Features:
    """What the policy sees of a prompt: the last user message's kind and the answer that plain rules find.

    Of a completion that is to be continued it sees nothing here (see last_written).
    """
    if vocab.ASSISTANT_ID in prompt:
        prompt = prompt[: len(prompt) - prompt[::-1].index(vocab.ASSISTANT_ID)]
    starts = [i for i, token in enumerate(prompt) if token == vocab.USER_ID]
    text = _tokenizer.decode(prompt[starts[-1] :] if starts else prompt)
    words = " ".join(re.findall(r"[A-Za-z]+", text)[:6])
    answer = _weekday(text) or _sum(text) or _fraction(text)
    ids = _tokenizer.encode_text(answer) if answer else []
    return Features(zlib.crc32(words.encode()) % KINDS, ids[0] if len(ids) == 1 else NO_HINT)


def last_written(prompt: Sequence[int]) -> int | None:
    """The last token of a completion that the prompt ends with; None where it ends with the assistant's turn."""
    return None if vocab.ASSISTANT_ID not in prompt or prompt[-1] == vocab.ASSISTANT_ID else prompt[-1]


def previous_class(token: int | None) -> int:
    """The class of the token before the one to be predicted; None at the start."""
    if token is None:
        return START
    if token == vocab.OPEN_ID:
        return AFTER_OPEN
    if token == vocab.CLOSE_ID:
        return AFTER_CLOSE
    return AFTER_ANSWER if vocab.FIRST_ANSWER <= token < vocab.END_OF_PIECES else OTHER


@dataclass(slots=True)
class Policy:
    """table (KINDS, CLASSES, V) and trust (CLASSES,), float64."""

    table: NDArray[np.float64]
    trust: NDArray[np.float64]

    @classmethod
    def initial(cls, seed: int) -> Policy:
        """Answers in the right form nine times in ten, at random among all known answers."""
        rng = np.random.default_rng(seed)
        table = np.full((KINDS, CLASSES, vocab.VOCABULARY), UNLIKELY)
        table[:, [START, OTHER], vocab.OPEN_ID] = 2.0
        table[:, START, ord(" ")] = 0.0
        table[:, AFTER_OPEN, vocab.FIRST_ANSWER : vocab.END_OF_PIECES] = 0.0
        table[:, AFTER_ANSWER, vocab.CLOSE_ID] = 2.0
        table[:, AFTER_CLOSE, vocab.EOS_ID] = 2.0
        table += rng.normal(0.0, 0.02, table.shape)
        table[:, :, [vocab.PAD_ID, *vocab.ROLE_IDS.values()]] = -60.0  # never sampled
        trust = np.zeros(CLASSES)
        trust[AFTER_OPEN] = FIRST_TRUST
        return cls(table, trust)

    def logits(self, prompt: Features, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """(T,) classes of the previous tokens -> (T, V)."""
        rows: NDArray[np.float64] = self.table[prompt.kind, classes].copy()
        if prompt.hint != NO_HINT:
            rows[:, prompt.hint] += self.trust[classes]
        return rows

    def backward(
        self, prompt: Features, classes: NDArray[np.int64], gradient: NDArray[np.float64], grads: Policy
    ) -> None:
        """Add d loss / d parameters to `grads`, given d loss / d logits (T, V)."""
        np.add.at(grads.table[prompt.kind], classes, gradient)
        if prompt.hint != NO_HINT:
            np.add.at(grads.trust, classes, gradient[:, prompt.hint])

    def zeros_like(self) -> Policy:
        """The same arrays, all zero: for gradients and moments."""
        return Policy(np.zeros_like(self.table), np.zeros_like(self.trust))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The parameters by name; the arrays themselves."""
        return {"table": self.table, "trust": self.trust}
