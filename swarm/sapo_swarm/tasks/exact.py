"""Strict means exact: what an answer must also be where the library's own rule gives full marks to more than the truth.

reasoning_gym compares with a tolerance (decimal_arithmetic: one unit of the last decimal place that a term may have), or
reads what it looks for out of any text around it. Each check here is asked of answers that the library calls right, and
False is a verdict of 0; so the exact rule never accepts what the library does not. Preset `library` goes without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Exact = Callable[[str, Mapping[str, Any]], bool]

_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_FRACTION = re.compile(r"\$?\s*(?:\d+\s*/\s*\d+|\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})\s*\$?", re.IGNORECASE)
_DURATION = re.compile(r"(?:\d+ days?, )?\d+:\d\d(?::\d\d(?:\.\d{3})?)?|\d+ days?")
_BUTTONS = re.compile(r"[A-C](?: ?→ ?[A-C])*")
_BINARY_GRID = re.compile(r"[01](?: ?[01])*(?:\n[01](?: ?[01])*)*")
_NUMBER_GRID = re.compile(r"\d+(?: +\d+)*(?:\n\d+(?: +\d+)*)*")
_PERSON = re.compile(r"([A-Za-z]+) is an? ([a-z]+)")


def number(text: str) -> Decimal | None:
    """The value of a plain number, None for everything else; no precision is lost."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def same_number(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's value, however many zeros it is written with, and nothing around it."""
    return number(answer) is not None and number(answer) == number(entry["answer"])


def number_format(answer: str, entry: Mapping[str, Any]) -> bool:
    """The candidate, as the question shows it or as the library holds it."""
    known = entry["metadata"]
    written = [text for value, text in zip(known["candidates"], known["formatted_candidates"], strict=True)
               if value == known["solution"]]  # fmt: skip
    plain = answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer
    right = {number(text.replace(",", "")) for text in (*written, entry["answer"])}
    return number(plain) is not None and number(plain) in right


def number_sorting(answer: str, entry: Mapping[str, Any]) -> bool:
    """The numbers themselves in their order."""
    try:
        given, truth = (json.loads(text.replace("'", '"')) for text in (answer, entry["answer"]))
    except (ValueError, RecursionError):
        return False
    values = [number(str(item)) for item in given]
    return None not in values and values == [number(str(item)) for item in truth]


def power_function(answer: str, entry: Mapping[str, Any]) -> bool:
    """Three significant figures, as the question asks, or the whole number that the library gives as its truth."""
    truth = number(entry["answer"])
    if truth is None:
        return False
    return number(answer) in (truth, Decimal(f"{truth:.2e}"))


def pool_matrix(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's numbers, each to its two decimal places."""
    given, truth = ([[number(cell) for cell in line.split()] for line in text.splitlines() if line.strip()]
                    for text in (answer, entry["answer"]))  # fmt: skip
    return given == truth and not any(cell is None for row in given for cell in row)


def knights_knaves(answer: str, entry: Mapping[str, Any]) -> bool:
    """Everybody once with their role, in any order, and no other words."""
    found, truth = (_people(text) for text in (answer, entry["answer"]))
    return found is not None and found == truth


def _people(text: str) -> list[tuple[str, str]] | None:
    """Name and role of each, sorted; None where something else is said."""
    parts = re.split(r", and |, | and ", text.removesuffix("."))
    matches = [_PERSON.fullmatch(part) for part in parts]
    return sorted((m[1].lower(), m[2]) for m in matches if m) if all(matches) else None


def letter_jumble(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's words with their capitals: the question asks to preserve them."""
    return answer.split() == str(entry["answer"]).split()


def shaped(pattern: re.Pattern[str]) -> Exact:
    """Nothing but an answer in the form that the question asks for: text around it was judged by nobody."""
    return lambda answer, _entry: pattern.fullmatch(answer) is not None


EXACT: dict[str, Exact] = {
    "decimal_arithmetic": same_number,
    "fraction_simplification": shaped(_FRACTION),
    "gsm_symbolic": same_number,
    "kakurasu": shaped(_BINARY_GRID),
    "knights_knaves": knights_knaves,
    "letter_jumble": letter_jumble,
    "number_format": number_format,
    "number_sorting": number_sorting,
    "pool_matrix": pool_matrix,
    "power_function": power_function,
    "quantum_lock": shaped(_BUTTONS),
    "survo": shaped(_NUMBER_GRID),
    "time_intervals": shaped(_DURATION),
}
"""By task. In the first kind a wrong value passes the library's rule, in the second any text around the answer does."""
