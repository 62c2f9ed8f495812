"""Hint relay: sharing as help, not as data.

1. Attempt questions at which others had a verified success, unaided.
2. Where all own attempts at a question failed, show the reasoning of a verified attempt of others, without its answer, and
   generate again.
3. Train on what succeeded as if the hint had not been there: the update's prompt is the question alone, and the
   advantages are those of a success among the failures.

Scaf-GRPO (arXiv 2510.19807) and QuestA (2507.13266) do this with a teacher's hints. A model that was not trained to follow
instructions makes nothing of a hint in its prompt: `relay_start` lets its completion begin with the hint instead, which is
then a part of what succeeded. `retry` is the control: the same second generation without a hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sapo_swarm.sapo.sample_external import has_advantage
from sapo_swarm.sapo.stages.base import Answered, Lesson, Material, StagePrompt, dead, sampled
from sapo_swarm.sapo.stages.shown_text import beginning, hint
from sapo_swarm.types import Question, TaskRef

HINTED = "{question}\n\nThe beginning of a solution:\n{shown}\n"


@dataclass(frozen=True, slots=True)
class Relay:
    """place: where the hint stands; "none" generates again without one."""

    place: Literal["prompt", "start", "none"] = "prompt"

    def prompts(
        self, material: Material, answered: Sequence[Answered], random: np.random.Generator
    ) -> list[StagePrompt]:
        """First the questions of others, then the dead ones again; see Stage."""
        found = self._hints(material)
        if not answered:
            mine = {group.question.ref for group in material.local}
            others = [
                group for group in material.known if group.question.ref in found and group.question.ref not in mine
            ]
            if first := sampled(others, material.wanted, random):
                return [StagePrompt(group.question) for group in first]
        if any(a.prompt.text for a in answered):
            return []
        return [self._again(q, found[q.ref]) for q in _dead_questions(material, answered) if q.ref in found]

    def _again(self, question: Question, shown: str) -> StagePrompt:
        if self.place == "prompt":
            return StagePrompt(question, HINTED.format(question=question.prompt, shown=shown))
        return StagePrompt(question, question.prompt, shown if self.place == "start" else "")

    def _hints(self, material: Material) -> Mapping[TaskRef, str]:
        """For each question with a verified attempt of others, the first hint that such an attempt gives."""
        make = beginning if self.place == "start" else hint
        found: dict[TaskRef, str] = {}
        for group in material.known:
            solved = (make(r.text, material.answer_format) for r in group.rollouts if r.reward >= 1.0)
            if group.question.ref not in found and (shown := next((text for text in solved if text), "")):
                found[group.question.ref] = shown
        return found

    def lessons(self, material: Material, answered: Sequence[Answered]) -> list[Lesson]:
        """The unaided groups as they are; of the others the successes, without the hint, among the failures before them."""
        failures = {
            g.question.ref: g.rewards for g in [*material.local, *(a.group for a in answered if not a.prompt.text)]
        }
        found: list[Lesson] = []
        for number, (prompt, group) in enumerate((a.prompt, a.group) for a in answered):
            if not prompt.text:
                if has_advantage(group):
                    found.append(Lesson(number, tuple(range(len(group.rollouts)))))
            elif places := tuple(i for i, reward in enumerate(group.rewards) if reward >= 1.0):
                rest = failures[prompt.question.ref][len(places) :]
                found.append(Lesson(number, places, rest or failures[prompt.question.ref][:1]))
        return found

    def figures(self, material: Material, answered: Sequence[Answered]) -> dict[str, float]:
        """attempted: questions of others. dead: groups of all failures among these and the local ones. hinted: of the dead,
        those that were generated again. revived: of the hinted, those in which something succeeded."""
        again = [a.group for a in answered if a.prompt.text]
        return {
            "stage_attempted": float(len(answered) - len(again)),
            "stage_dead": float(len(list(_dead_questions(material, answered)))),
            "stage_hinted": float(len(again)),
            "stage_revived": float(sum(group.solved for group in again)),
        }


def _dead_questions(material: Material, answered: Sequence[Answered]) -> Iterator[Question]:
    unaided = [*material.local, *(a.group for a in answered if not a.prompt.text)]
    return (group.question for group in unaided if dead(group))
