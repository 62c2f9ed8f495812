"""The interface of a stage: more prompts in a round, made from local groups and from the pool, and what is learned from them.

A round that has a stage goes on after the exchange: `prompts` is asked again and again, each time with all that was
answered so far, until it returns nothing; what comes back is generated and rewarded as local groups are. Then `lessons`
says which of these completions the update takes, and under which prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from sapo_swarm.types import AnswerFormat, Group, Question


class StagePrompt(msgspec.Struct, frozen=True):
    """A question to generate a group for. text: the whole prompt of a second attempt, else "". start: what a completion begins
    with; the model writes the rest."""

    question: Question
    text: str = ""
    start: str = ""


class Answered(msgspec.Struct, frozen=True):
    """What was generated for a prompt of the stage, rewarded by this node's own verifier."""

    prompt: StagePrompt
    group: Group


class Lesson(msgspec.Struct, frozen=True):
    """Completions that an update takes.

    answered: the place of their group among all that the stage had answered. places: of the completions in it. baseline: rewards
    of other attempts at the question that count in the advantages and are not trained on. shown: the update's prompt is
    the one that was generated with; else it is the question alone.
    """

    answered: int
    places: tuple[int, ...]
    baseline: tuple[float, ...] = ()
    shown: bool = False


class Material(msgspec.Struct, frozen=True):
    """What a stage works with. local: groups of this round. known: groups of others (alone: of earlier rounds), verified here.

    wanted: questions that it may take from `known`. answer_format: where an answer stands.
    """

    local: tuple[Group, ...]
    known: tuple[Group, ...]
    wanted: int
    answer_format: AnswerFormat = "tags"


class Stage(Protocol):
    """A stage. Its methods are pure: the same arguments give the same result."""

    def prompts(
        self, material: Material, answered: Sequence[Answered], random: np.random.Generator
    ) -> list[StagePrompt]:
        """What to generate next, given everything that was answered; [] when the stage is over."""
        ...

    def lessons(self, material: Material, answered: Sequence[Answered]) -> list[Lesson]:
        """What is learned from it."""
        ...

    def figures(self, material: Material, answered: Sequence[Answered]) -> dict[str, float]:
        """Counts for the journal, by name."""
        ...


def dead(group: Group) -> bool:
    """No rollout has the whole reward: a group of all failures."""
    return not group.solved


def sampled(groups: Sequence[Group], wanted: int, random: np.random.Generator) -> list[Group]:
    """Up to `wanted` of the groups, uniformly, in their order, and of one question at most one."""
    by_ref = {group.question.ref: group for group in groups}
    distinct = list(by_ref.values())
    if len(distinct) <= wanted:
        return distinct
    chosen = random.choice(len(distinct), size=wanted, replace=False)
    return [distinct[i] for i in sorted(chosen.tolist())]
