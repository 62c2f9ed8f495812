"""A short worked solution for an entry of any of the nine tasks: steps, then `<answer>...</answer>`.

The steps are ours; only the question and the final answer come from reasoning_gym.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from recipe.worked_arithmetic import base_conversion, basic_arithmetic, decimal_arithmetic, fraction_simplification
from recipe.worked_calendar import calendar_arithmetic

_LETTER = re.compile(r"(?:>(?P<times>\++)\[<(?P<each>[+-]+)>-\]<)?(?P<rest>[+-]*)\.")


def arc_1d(entry: dict[str, Any]) -> tuple[str, str]:
    """The rule's name in words; the row is the answer."""
    return f"Rule: {entry['metadata']['task_name'].replace('_', ' ').replace('pix', '')}.", str(entry["answer"])


def binary_matrix(entry: dict[str, Any]) -> tuple[str, str]:
    """The rows are the answer: each of them is a step."""
    return "Row by row.", str(entry["answer"])


def _signed(run: str) -> str:
    return f"{run[0]}{len(run)}" if run else "+0"


def bf(entry: dict[str, Any]) -> tuple[str, str]:
    """Per printed letter, how much the cell changes (a counted loop as a product), and the letter."""
    program, word = entry["metadata"]["bf_program"], str(entry["answer"])
    segments = list(_LETTER.finditer(program))
    if len(segments) != len(word):
        raise ValueError(f"The program of {word!r} is not a chain of printed letters: {program}")
    steps = []
    for segment, letter in zip(segments, word, strict=True):
        change = _signed(segment["rest"])
        if segment["times"]:
            sign = "-" if segment["each"][0] == "-" else ""
            change = f"{len(segment['times'])}*{sign}{len(segment['each'])}{change}"
        steps.append(f"{change} {letter}")
    return ",".join(steps), word


def propositional_logic(entry: dict[str, Any]) -> tuple[str, str]:
    """All premises joined with AND: what they say together follows from them."""
    premises: list[str] = entry["metadata"]["premises"]
    joined = premises[0]
    for premise in premises[1:]:
        joined = f"({joined} ∧ {premise})"
    return f"Join {len(premises)}.", joined


_WORKED: dict[str, Callable[[dict[str, Any]], tuple[str, str]]] = {
    "base_conversion": base_conversion,
    "basic_arithmetic": basic_arithmetic,
    "arc_1d": arc_1d,
    "bf": bf,
    "propositional_logic": propositional_logic,
    "fraction_simplification": fraction_simplification,
    "decimal_arithmetic": decimal_arithmetic,
    "calendar_arithmetic": calendar_arithmetic,
    "binary_matrix": binary_matrix,
}
DATASETS = tuple(_WORKED)


def worked(dataset: str, entry: dict[str, Any]) -> str:
    """The completion that the starter is trained on. Raises KeyError for a task that has no worked form."""
    steps, answer = _WORKED[dataset](entry)
    return f"{steps}\n<answer>{answer}</answer>"
