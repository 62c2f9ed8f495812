"""Imitation of other nodes' successes by a node whose own answers teach nothing. Pure.

A small model beside a large one earns nothing at first: all rewards of its groups are equal, so they have no policy gradient,
and generating them takes most of its time. Such a node samples a single question a round, to notice when that changes, and
imitates answers of others that its own verifier found right, in several steps at the rate of the examples phase. Measured:
docs/lab/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sapo_swarm.types import Group, Question

WINDOW, ENOUGH = 4, 0.25
"""Imitate while, over the last WINDOW rounds, less than this share of local groups had unequal rewards."""
QUESTIONS = 1
"""Questions that an imitating node samples a round."""
LEAST, REMEMBERED = 8, 96
"""Texts that imitation needs, and the newest that are kept."""
TEXTS_OF_GROUP = 2
"""Most texts of a group, the shortest right ones: more of them teach the same."""
TEXTS_OF_ROUND, TEXTS_OF_STEP = 32, 8


class Lesson(msgspec.Struct, frozen=True):
    """A question, and another node's answer to which this node's verifier gave the full reward."""

    question: Question
    text: str


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

    def observe_external(self, groups: Sequence[Group]) -> None:
        """Add the external groups of a round, verified and scored here. Turns of an environment are no text to imitate."""
        known = {(lesson.question.prompt_sha256, lesson.text) for lesson in self.lessons}
        for group in groups:
            texts = (r for r in group.rollouts if r.finish == "stop" and not r.turns and not r.shortcut)
            right = {rollout.text for rollout in texts if rollout.reward >= 1.0}
            shortest = sorted(right, key=lambda text: (len(text), text))[:TEXTS_OF_GROUP]
            fresh = [text for text in shortest if (group.question.prompt_sha256, text) not in known]
            self.lessons += [Lesson(group.question, text) for text in fresh]
        self.lessons = self.lessons[-REMEMBERED:]

    def forget_lessons(self) -> None:
        """What others wrote is no longer wanted."""
        self.lessons = []

    def choose_lessons(self, random: np.random.Generator) -> list[Lesson]:
        """What one round imitates: at most TEXTS_OF_ROUND."""
        count = min(TEXTS_OF_ROUND, len(self.lessons))
        return [self.lessons[i] for i in random.choice(len(self.lessons), size=count, replace=False)]
