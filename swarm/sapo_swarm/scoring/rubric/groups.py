"""Groups of judged tasks: which answers a judge is shown, and rewards from its verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from sapo_swarm.scoring.answer_format import after_reasoning
from sapo_swarm.scoring.declared.extract import extract
from sapo_swarm.scoring.messages import cap
from sapo_swarm.scoring.rubric.judge import Judge, JudgeAway
from sapo_swarm.tasks.own import library
from sapo_swarm.types import RewardRule, TaskRef

Verdicts = tuple[tuple[float, ...], tuple[bool, ...]]
"""Rewards of a group's texts, and whether each holds an answer."""


async def judged_groups(
    judge: Judge | None, groups: Sequence[tuple[TaskRef, str, Sequence[str]]], rule: RewardRule
) -> list[Verdicts]:
    """groups: (reference, its question's text, texts). A text without an answer earns nothing and is not shown to the judge,
    nor is any where the question is "". Raises JudgeAway, BadTask.
    """
    if judge is None:
        raise JudgeAway(
            f"Task {groups[0][0].dataset!r} is judged by a model, and none is set. See: sapo-desktop tasks judge --help"
        )
    table = []
    for ref, question, texts in groups:
        spec = library.find(ref.dataset).spec
        said = [after_reasoning(cap(text), rule.in_reasoning) if question else "" for text in texts]
        table.append([(spec.rubric, question, extract(spec.extract, text, rule.answer_format) or "") for text in said])
    cases = [case for row in table for case in row if case[2]]
    passed = dict(zip(cases, await judge.verdicts(cases), strict=True))
    return [
        (tuple(float(passed.get(case) is True) for case in row), tuple(bool(case[2]) for case in row)) for row in table
    ]
