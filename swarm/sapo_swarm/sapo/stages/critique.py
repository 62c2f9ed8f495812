"""Critique: a node sees an attempt that failed, says what is wrong with it, and answers.

The attempt is another node's at its question (alone: an own one). What is trained on is the answer after the
critique, verified, under the prompt that showed the attempt: a group of its own, sampled by this policy. Only failed
attempts are shown, for of a right one the answer would be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapo_swarm.sapo.sample_external import has_advantage
from sapo_swarm.sapo.stages.base import Answered, Lesson, Material, StagePrompt, sampled
from sapo_swarm.sapo.stages.shown_text import shortened
from sapo_swarm.types import Group

CRITICISED = (
    "{question}\n\nSomebody's attempt, which is wrong:\n{shown}\n\nSay what is wrong with it, then solve the problem.\n"
)


@dataclass(frozen=True, slots=True)
class Critique:
    """See the module."""

    def prompts(
        self, material: Material, answered: Sequence[Answered], random: np.random.Generator
    ) -> list[StagePrompt]:
        """One prompt for each of up to `wanted` questions; see Stage."""
        if answered:
            return []
        groups = [group for group in material.known or material.local if _failed(group)]
        chosen = sampled(groups, material.wanted, random)
        texts = [_failed(group) for group in chosen]
        shown = [text[int(random.integers(len(text)))] for text in texts]
        return [
            StagePrompt(group.question, CRITICISED.format(question=group.question.prompt, shown=text))
            for group, text in zip(chosen, shown, strict=True)
        ]

    def lessons(self, material: Material, answered: Sequence[Answered]) -> list[Lesson]:
        """Every group with a policy gradient, whole, under the prompt it was generated with."""
        del material
        return [
            Lesson(number, tuple(range(len(a.group.rollouts))), shown=True)
            for number, a in enumerate(answered)
            if has_advantage(a.group)
        ]

    def figures(self, material: Material, answered: Sequence[Answered]) -> dict[str, float]:
        """attempted: attempts criticised. corrected: those after which something succeeded."""
        del material
        return {
            "stage_attempted": float(len(answered)),
            "stage_corrected": float(sum(a.group.solved for a in answered)),
        }


def _failed(group: Group) -> list[str]:
    """What of the group's failures can be shown."""
    shown = (shortened(r.text) for r in group.rollouts if r.reward < 1.0 and r.finish == "stop")
    return [text for text in shown if text]
