"""Verifiers of text: exact, choice, regex, length, format."""

from __future__ import annotations

import re

from sapo_swarm.scoring.answer_format import written_once
from sapo_swarm.scoring.declared.case import Case, plain, unquoted
from sapo_swarm.tasks.own.verifiers import Choice, Exact, Format, Length, Regex

MATCHED = 2000
"""Characters of an answer that a pattern is matched with: longer ones do not match."""
_AROUND = "()[]{}.: "


def exact(part: Exact, case: Case) -> float:
    """1.0 for the truth, or one of its alternatives, after normalisation."""

    def form(text: str) -> str:
        return plain(text) if part.case else plain(text).casefold()

    truths = case.truth.split(part.alternatives) if part.alternatives else [case.truth]
    return float(form(case.answer) in {form(truth) for truth in truths if truth.strip()})


def choice(part: Choice, case: Case) -> float:
    """1.0 for the truth's option alone; two options in one answer are none."""
    chosen = label(case.answer)
    if part.options and chosen not in {label(option) for option in part.options}:
        return 0.0
    return float(bool(chosen) and chosen == label(case.truth))


def label(text: str) -> str:
    """An option's name without brackets, the quotes around it, a full stop and case."""
    return unquoted(plain(text).casefold().strip(_AROUND)).strip(_AROUND)


def regex(part: Regex, case: Case) -> float:
    """1.0 where the whole answer matches. The worker's deadline ends a match that would not."""
    if len(case.answer) > MATCHED:
        return 0.0
    pattern = re.compile(part.pattern or case.truth, 0 if part.case else re.IGNORECASE)
    return float(pattern.fullmatch(case.answer) is not None)


def length(part: Length, case: Case) -> float:
    """1.0 inside the limits."""
    return float(part.least <= len(case.text if part.whole else case.answer) <= part.most)


def form(part: Format, case: Case) -> float:
    """1.0 for one answer with the wanted beginning and end, and nothing behind it."""
    if not (case.answer.startswith(part.starts) and case.answer.endswith(part.ends)):
        return 0.0
    if not part.only:
        return 1.0
    if case.task.spec.extract == "tags":
        return float(written_once(case.answer_format, case.text))
    return float(case.text.rstrip().endswith(case.answer))
