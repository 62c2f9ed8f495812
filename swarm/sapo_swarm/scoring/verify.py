"""One text against one regenerated entry. Runs in the scorer worker; never on an entry that came off the wire."""

from __future__ import annotations

import decimal
import math
from typing import Any

from sapo_swarm.scoring.declared.extract import extract
from sapo_swarm.scoring.declared.judge import declared
from sapo_swarm.scoring.verifiers import GUARDS, VERIFIERS, names_no_number
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.prompts import extract_answer
from sapo_swarm.types import MAX_COMPLETION_BYTES

FATAL = (MemoryError,)
"""Not a verdict: the group fails and its source is struck."""


CLOSING = "</answer>"
TAIL = 8
"""Spaces and line breaks that may follow the closing tag."""


class DeadlineExceeded(BaseException):
    """Raised by the alarm inside a scorer; no `except Exception` of a scorer can swallow it."""


def cap(text: str) -> str:
    """The last MAX_COMPLETION_BYTES of the text in UTF-8: the answer stands at the end. Lone surrogates become "?"."""
    if text.isascii() and len(text) <= MAX_COMPLETION_BYTES:
        return text
    return text.encode("utf-8", "replace")[-MAX_COMPLETION_BYTES:].decode("utf-8", "ignore")


def ends_well(text: str) -> bool:
    """Nothing but the end follows the last closing answer tag: what stands there would be taught though nobody judges it. A few
    spaces and line breaks are let pass, because some models end every answer with one."""
    tail = text[text.rfind(CLOSING) + len(CLOSING) :]
    return CLOSING in text and len(tail) <= TAIL and not tail.strip(" \t\r\n")


def raw_score(answer: str, name: str, dataset: Any, entry: dict[str, Any]) -> float:
    """What the dataset's verifier (or ours) says; may raise anything that reasoning_gym raises."""
    own = VERIFIERS.get(name)
    if own is not None:
        return own(answer, entry)
    guard = GUARDS.get(name)
    if (guard is not None and not guard(answer, entry)) or names_no_number(answer, entry):
        return 0.0
    return float(dataset.score_answer(answer, entry))


def score_text(text: str, name: str, dataset: Any, entry: dict[str, Any], partial: bool = False) -> tuple[float, bool]:
    """(reward in [0, 1], well formed). Without partial credit the reward is 1.0 or 0.0.

    Well formed: the text ends with a non-empty <answer>...</answer>, and only such a text earns anything; or it holds an
    answer where the person's own task looks for one elsewhere. An exception in a verifier is a verdict of 0; raises
    MemoryError and DeadlineExceeded only.
    """
    text, own = cap(text), isinstance(dataset, OwnTask)
    tagged = not own or dataset.spec.extract == "tags"
    answer = extract(dataset.spec.extract, text) if own else extract_answer(text)
    if not answer or (tagged and (CLOSING in answer or not ends_well(text))):
        return 0.0, False
    try:
        raw = declared(dataset, entry["row"], answer, text) if own else raw_score(answer, name, dataset, entry)
    except (DeadlineExceeded, *FATAL):
        raise
    except BaseException:  # a scorer may raise anything, SystemExit included: junk in the answer, not a crash here
        return 0.0, True
    if not math.isfinite(raw):
        return 0.0, True
    if partial:
        return min(max(raw, 0.0), 1.0), True
    return float(raw == 1.0), True


def fresh_context() -> decimal.Context:
    """reasoning_gym's decimal_arithmetic sets the global precision: each group starts from the default again."""
    return decimal.Context(prec=28)
