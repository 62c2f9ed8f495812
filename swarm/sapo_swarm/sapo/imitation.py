"""Imitation of other nodes' successes by a node whose own answers teach nothing. Pure.

A small model beside a large one earns nothing at first: all rewards of its groups are equal, so they have no policy gradient,
and generating them takes most of its time. Such a node samples a single question a round, to notice when that changes, and
imitates answers of others that its own verifier found right, in several steps at the rate of the examples phase. Measured:
docs/lab/README.md.

A text that is practised on is used once; a lesson comes back round after round. So a lesson is the judged answer alone, in
the form that the task asks for: what stands around it nobody judged, and a question repeated there, which no wall refuses,
came back in a quarter of a node's own answers (docs/benchmarks/trust.md). And sources take turns, in what is kept and in what
a round imitates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from sapo_swarm.scoring.declared_verifiers import enclose_answer, extract_answer
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.tasks.own import library
from sapo_swarm.types import AnswerFormat, Group, Question

WINDOW, ENOUGH = 4, 0.25
"""Imitate while, over the last WINDOW rounds, less than this share of local groups had unequal rewards."""
QUESTIONS = 1
"""Questions that an imitating node samples a round."""
LEAST, REMEMBERED = 8, 96
"""Texts that imitation needs, and the newest that are kept."""
TEXTS_OF_GROUP = 2
"""Most answers of a group, the shortest right ones: more of them teach the same."""
TEXTS_OF_ROUND, TEXTS_OF_STEP = 32, 8


class Lesson(msgspec.Struct, frozen=True):
    """A question, another node's answer to which this node's verifier gave the full reward, and that node."""

    question: Question
    text: str
    source: str = ""


class Imitation(msgspec.Struct):
    """Mutable. unequal: share of local groups with unequal rewards in the last WINDOW rounds. lessons: newest last."""

    unequal: list[float] = []
    lessons: list[Lesson] = []

    @property
    def due(self) -> bool:
        """Whether the next round imitates."""
        starved = len(self.unequal) == WINDOW and sum(self.unequal) < ENOUGH * WINDOW
        return starved and len(self.lessons) >= LEAST

    def observe_local(self, groups: Sequence[Group]) -> None:
        """Add the local groups of a round."""
        if groups:
            share = sum(group.nonzero_advantage for group in groups) / len(groups)
            self.unequal = [*self.unequal, share][-WINDOW:]

    def observe_external(self, groups: Sequence[Group], answer_format: AnswerFormat) -> None:
        """Add the external groups of a round, verified and scored here: of each source and question the first. A question that
        two sources answered alike counts twice. A group whose rewards are equal has passed fewer walls and is left out."""
        known = {(lesson.source, lesson.question.prompt_sha256) for lesson in self.lessons}
        for group in groups:
            if group.nonzero_advantage and (key := (group.node, group.question.prompt_sha256)) not in known:
                known.add(key)
                answers = right_answers(group, answer_format)
                self.lessons += [Lesson(group.question, answer, group.node) for answer in answers]
        held = Counter(lesson.source for lesson in self.lessons)
        while len(self.lessons) > REMEMBERED:
            most = max(held.values())
            oldest = next(i for i, lesson in enumerate(self.lessons) if held[lesson.source] == most)
            held[self.lessons.pop(oldest).source] -= 1

    def forget_lessons(self) -> None:
        """What others wrote is no longer wanted."""
        self.lessons = []

    def choose_lessons(self, random: np.random.Generator) -> list[Lesson]:
        """What one round imitates: at most TEXTS_OF_ROUND, an equal part of them from each source at most."""
        by_source: dict[str, list[Lesson]] = {}
        for place in random.permutation(len(self.lessons)):
            by_source.setdefault(self.lessons[place].source, []).append(self.lessons[place])
        most = -(-TEXTS_OF_ROUND // max(1, len(by_source)))
        turns = [some[turn] for turn in range(most) for some in by_source.values() if turn < len(some)]
        return turns[:TEXTS_OF_ROUND]


def right_answers(group: Group, answer_format: AnswerFormat) -> list[str]:
    """The shortest right answers without what stands around them; none of an environment's turns, nor where a judge decides."""
    ref = group.question.ref
    how = library.answer_extraction(ref)
    if how is None or library.is_judged(ref):
        return []
    right = (r for r in group.rollouts if r.reward >= 1.0 and r.finish == "stop" and not r.turns and not r.shortcut)
    answers = {extract_answer(how, after_reasoning(rollout.text), answer_format) for rollout in right}
    ranked = sorted(filter(None, answers), key=lambda answer: (len(answer), answer))[:TEXTS_OF_GROUP]
    return [enclose_answer(how, answer, answer_format) for answer in ranked]
