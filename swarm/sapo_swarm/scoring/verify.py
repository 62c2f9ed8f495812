"""One text against one regenerated entry, in the scorer worker; never an entry that came over the network."""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from sapo_swarm.scoring.declared_verifiers import extract_answer, score_declared
from sapo_swarm.scoring.messages import cap_completion
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.tasks.catalogue import EXACT, LIBRARY_PRESET
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import EnvironmentVerifier
from sapo_swarm.types import STRICT, RewardRule

# Our own verifiers, for datasets whose reasoning_gym scorer would run the answer or can be made to explode.
#
# Each gives the same verdict as reasoning_gym's on honest answers (checked by a property test) and 0 on everything
# else.

Entry = Mapping[str, Any]
Verifier = Callable[[str, Entry], float]
Guard = Callable[[str, Entry], bool]

MAX_FORMULA = 256
"""Characters of a propositional formula; the generator's longest conclusion has under 20."""
_LITERAL = str.maketrans("()'", '[]"')
_OPERATORS = frozenset("∧∨→↔")
_NOT_A_NUMBER = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])", re.IGNORECASE)


def _nested(answer: str) -> Any:
    """A list or tuple literal as lists, parsed as JSON. Raises ValueError, RecursionError."""
    items = json.loads(f"[{answer.translate(_LITERAL)}]")
    return items[0] if len(items) == 1 and isinstance(items[0], list) else items  # "[1], [2]" is a tuple too


def _rows(answer: str) -> str:
    """A nested list literal in the form of the reference answer's lines. Raises ValueError, TypeError, RecursionError."""
    return "\n".join(" ".join(str(cell) for cell in row) for row in _nested(answer))


def binary_matrix(answer: str, entry: Entry) -> float:
    """1.0 for the reference answer's rows of numbers, 0.1 for the same matrix as a list of lists."""
    if answer == entry["answer"]:
        return 1.0
    try:
        return 0.1 if _rows(answer) == entry["answer"] else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


def spiral_matrix(answer: str, entry: Entry) -> float:
    """1.0 for the reference answer's numbers separated by spaces, 0.1 for the same as a list."""
    oracle = entry["answer"].strip()
    if answer.strip() == oracle:
        return 1.0
    try:
        return 0.1 if " ".join(str(item) for item in _nested(answer)) == oracle else 0.0
    except (ValueError, TypeError, RecursionError):
        return 0.0


def string_insertion(answer: str, entry: Entry) -> float:
    """1.0 for the reference answer's string, 0.1 for the same as a list of characters."""
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
"""Called before the dataset's own scorer; False is a verdict of 0."""


def names_no_number(answer: str, entry: Entry) -> bool:
    """True for NaN or infinity in an answer whose reference has none: comparisons with them succeed where they should not
    (number_sorting gives [NaN, NaN, ...] full marks)."""
    return _NOT_A_NUMBER.search(answer) is not None and answer != entry["answer"]


# One text against one regenerated entry. Runs in the scorer worker; never on an entry that came over the network.

FATAL = (MemoryError,)
"""No verdict: the group fails and its source is struck."""


class DeadlineExceeded(BaseException):
    """Raised by the alarm inside a scorer; no `except Exception` of a scorer can swallow it."""


def raw_score(answer: str, name: str, dataset: Any, entry: dict[str, Any], preset: str = "") -> float:
    """The score from the dataset's verifier (or ours); may raise anything that reasoning_gym raises.

    If the library gives full marks to more than a right answer, only the right one gets them here, except in preset
    `library`.
    """
    own = VERIFIERS.get(name)
    if own is not None:
        return own(answer, entry)
    guard = GUARDS.get(name)
    if (guard is not None and not guard(answer, entry)) or names_no_number(answer, entry):
        return 0.0
    score = float(dataset.score_answer(answer, entry))
    exact = EXACT.get(name)
    if exact is not None and score >= 1.0 and preset != LIBRARY_PRESET and not exact(answer, entry):
        return 0.0
    return score


def score_text(
    text: str, name: str, dataset: Any, entry: dict[str, Any], rule: RewardRule = STRICT, preset: str = ""
) -> tuple[float, bool]:
    """(reward in [0, 1], well formed); preset: the reference's. Without partial credit the reward is 1.0 or 0.0,
    unless the task grades its answers itself.

    Well formed: the text ends with a non-empty answer in the rule's format, after its reasoning, and only such a text earns
    anything; or it holds an answer where the custom task looks for one instead. An exception in a verifier is a verdict of 0;
    raises only MemoryError and DeadlineExceeded.
    """
    text = after_reasoning(cap_completion(text), rule.in_reasoning)
    own = dataset if isinstance(dataset, OwnTask) else None
    answer = extract_answer("tags" if own is None else own.spec.extract, text, rule.answer_format)
    if not answer:
        return 0.0, False
    if own is None:
        return _judged(rule.partial, lambda: raw_score(answer, name, dataset, entry, preset))
    graded = rule.partial or own.spec.graded
    return _judged(graded, lambda: score_declared(own, entry["row"], answer, text, answer_format=rule.answer_format))


def score_episode(
    task: OwnTask, row: Mapping[str, str], text: str, environment: float, rule: RewardRule
) -> tuple[float, bool]:
    """(reward, well formed) of an episode: the environment's verdict, and the other verifiers on the model's last turn.

    If the environment is the only one, the last turn may have any form. Raises MemoryError, DeadlineExceeded.
    """
    text = after_reasoning(cap_completion(text), rule.in_reasoning)
    alone = all(isinstance(part, EnvironmentVerifier) for part in task.spec.verifier)
    answer = text if alone else extract_answer(task.spec.extract, text, rule.answer_format) or ""
    if not alone and not answer:
        return 0.0, False
    graded = rule.partial or task.spec.graded
    return _judged(graded, lambda: score_declared(task, row, answer, text, environment, rule.answer_format))


def _judged(graded: bool, verdict: Callable[[], float]) -> tuple[float, bool]:
    """(reward, well formed) of a text that holds an answer. graded: shares of the full reward are paid, too. Raises
    MemoryError, DeadlineExceeded."""
    try:
        raw = verdict()
    except (DeadlineExceeded, *FATAL):
        raise
    except BaseException:  # a scorer may raise anything, SystemExit included: junk in the answer, not a crash here
        return 0.0, True
    if not math.isfinite(raw):
        return 0.0, True
    return min(max(raw, 0.0), 1.0) if graded else float(raw == 1.0), True


def fresh_context() -> decimal.Context:
    """reasoning_gym's decimal_arithmetic sets the global precision: each group starts from the default again."""
    return decimal.Context(prec=28)
