"""Verifiers of our own, for datasets whose reasoning_gym scorer would run the answer or can be made to explode.

Each gives the same verdict as reasoning_gym's on honest answers (held by a property test) and 0 on everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Entry = Mapping[str, Any]
Verifier = Callable[[str, Entry], float]
Guard = Callable[[str, Entry], bool]

MAX_FORMULA = 256
"""Characters of a propositional formula; the generator's longest conclusion has under 20."""
_LITERAL = str.maketrans("()'", '[]"')
_OPERATORS = frozenset("∧∨→↔")
_NOT_A_NUMBER = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])", re.IGNORECASE)


def _nested(answer: str) -> Any:
    """A list or tuple literal as lists, by way of JSON. Raises ValueError, RecursionError."""
    items = json.loads(f"[{answer.translate(_LITERAL)}]")
    return items[0] if len(items) == 1 and isinstance(items[0], list) else items  # "[1], [2]" is a tuple too


def _rows(answer: str) -> str:
    """A nested list literal in the form of the oracle's lines. Raises ValueError, TypeError, RecursionError."""
    return "\n".join(" ".join(str(cell) for cell in row) for row in _nested(answer))


def binary_matrix(answer: str, entry: Entry) -> float:
    """1.0 for the oracle's rows of numbers, 0.1 for the same matrix as a list of lists."""
    if answer == entry["answer"]:
        return 1.0
    try:
        return 0.1 if _rows(answer) == entry["answer"] else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


def spiral_matrix(answer: str, entry: Entry) -> float:
    """1.0 for the oracle's numbers with spaces between, 0.1 for the same as a list."""
    oracle = entry["answer"].strip()
    if answer.strip() == oracle:
        return 1.0
    try:
        return 0.1 if " ".join(str(item) for item in _nested(answer)) == oracle else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


def string_insertion(answer: str, entry: Entry) -> float:
    """1.0 for the oracle's string, 0.1 for the same as a list of characters."""
    if answer == entry["answer"]:
        return 1.0
    try:
        return 0.1 if "".join(_nested(answer)) == entry["answer"] else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


def n_queens(answer: str, entry: Entry) -> float:
    """1.0 for one of the board's solutions, 0.5 for the same as a list of lists."""
    solutions = entry["metadata"]["valid_answers"]
    if answer in solutions:
        return 1.0
    try:
        return 0.5 if _rows(answer) in solutions else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


VERIFIERS: dict[str, Verifier] = {
    "binary_matrix": binary_matrix,
    "n_queens": n_queens,
    "spiral_matrix": spiral_matrix,
    "string_insertion": string_insertion,
}
"""Used instead of the dataset's own scorer."""


def is_formula(answer: str, entry: Entry) -> bool:
    """A well-formed formula over the entry's own variables, short enough for a truth table."""
    if len(answer) > MAX_FORMULA:
        return False
    variables = set(entry["metadata"]["variables"])
    depth, want_operand = 0, True
    for char in answer:
        if char.isspace():
            continue
        if want_operand and char == "(":
            depth += 1
        elif want_operand and char in variables:
            want_operand = False
        elif not want_operand and char == ")" and depth > 0:
            depth -= 1
        elif not want_operand and char in _OPERATORS:
            want_operand = True
        elif not (want_operand and char == "¬"):
            return False
    return depth == 0 and not want_operand


GUARDS: dict[str, Guard] = {"propositional_logic": is_formula}
"""Asked before the dataset's own scorer; False is a verdict of 0."""


def names_no_number(answer: str, entry: Entry) -> bool:
    """True for NaN or infinity in an answer whose oracle has none: comparisons with them pass where they should not
    (number_sorting gives [NaN, NaN, ...] full marks)."""
    return _NOT_A_NUMBER.search(answer) is not None and answer != entry["answer"]
