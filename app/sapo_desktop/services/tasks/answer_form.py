"""Whether an answer has the form of a right one, right or not: one of the options, a number, JSON with the truth's keys.

It tells apart what a model has to learn: to write answers as they are wanted, or to find the right ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from sapo_desktop.services.tasks.proposal.answers import date_form
from sapo_swarm.scoring.answer_format import after_reasoning
from sapo_swarm.scoring.declared import extract_answer, normalised_label, parse_json, parse_measure
from sapo_swarm.scoring.messages import cap
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import Choice, Exact, JsonEqual, Number, Verifier, truth_column
from sapo_swarm.types import AnswerFormat

LONGER = 2
"""Times as long as the right answer a text may be, and ROOM characters more, to pass for an answer."""
ROOM = 20


def written_answer_of(task: OwnTask, text: str, answer_format: AnswerFormat, in_reasoning: bool = False) -> str:
    """The answer that is judged in a completion of this task; "" where it holds none."""
    return extract_answer(task.spec.extract, after_reasoning(cap(text), in_reasoning), answer_format) or ""


def has_form(task: OwnTask, row: Mapping[str, str], answer: str) -> bool:
    """The answer looks like one to every verifier that knows what one looks like. row: with the right answer."""
    return bool(answer) and all(
        _fits(part, answer, row.get(truth_column(task.spec, part), "")) for part in task.spec.verifier
    )


def _fits(part: Verifier, answer: str, truth: str) -> bool:
    if isinstance(part, Choice) and part.options:
        return normalised_label(answer) in {normalised_label(option) for option in part.options}
    if isinstance(part, Number):
        value, unit = parse_measure(answer, part)
        return value is not None and (bool(unit) or not part.need_unit)
    if isinstance(part, JsonEqual):
        try:
            found, wanted = parse_json(answer), parse_json(truth)
        except (ValueError, RecursionError):
            return False
        return type(found) is type(wanted) and (not isinstance(wanted, dict) or set(found) == set(wanted))
    if isinstance(part, Exact) and (form := date_form([truth])):
        return date_form([answer]) == form
    return not isinstance(part, Exact) or len(answer) <= LONGER * len(truth) + ROOM
