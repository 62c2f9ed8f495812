"""Does a model answer the question, or say the same whatever is asked? Pure; nothing generates or scores here.

Some verifiers accept one answer to most questions: of reasoning_gym's propositional_logic questions, with the paper's settings,
"(P ∨ Q)" follows from four in five. A model that has learnt to write it scores high and has learnt nothing else. So beside the
share of right answers stands what a task's commonest answer alone would score: the constant-answer baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sapo_swarm.types import TaskRef

OFTEN = 0.1
"""Answers that make up less of a task's samples than this are not worth a second look."""
MAX_CHARACTERS = 200
"""Longer answers are no formula for everything."""


@dataclass(frozen=True, slots=True)
class ConstantAnswer:
    """text: the answer a model gave most often to a task's questions; share: of its samples; right: strict pass@1 on the same
    questions if it were given to all of them."""

    text: str
    share: float
    right: float


def commonest(answers: Iterable[tuple[TaskRef, Sequence[str]]]) -> dict[str, tuple[str, float]]:
    """(item, an answer a sample, "" where there was none) -> task -> its commonest answer and that one's share of the samples.

    Only of tasks with several items; only answers that came to several items; only shares of at least OFTEN.
    """
    samples: Counter[str] = Counter()
    given: dict[str, Counter[str]] = {}
    items: dict[tuple[str, str], int] = {}
    for ref, texts in answers:
        samples[ref.dataset] += len(texts)
        kept = [text for text in texts if text and len(text) <= MAX_CHARACTERS]
        given.setdefault(ref.dataset, Counter()).update(kept)
        for text in set(kept):
            items[ref.dataset, text] = items.get((ref.dataset, text), 0) + 1
    found: dict[str, tuple[str, float]] = {}
    for task, counts in given.items():
        repeated = [(count, text) for text, count in counts.items() if items[task, text] > 1]
        if repeated:
            count, text = max(repeated)
            if count >= OFTEN * samples[task]:
                found[task] = (text, count / samples[task])
    return found


def explains(pass_at_1: float, share: float, right: float) -> bool:
    """An answer that makes up at least half of what a model says, and alone would score at least half of what it scores.

    A quarter of what it says would be chance, among a few questions with seven possible answers."""
    return share >= 0.5 and right >= 0.5 * pass_at_1 > 0


def sentence(task: str, answer: ConstantAnswer) -> str:
    """In words. Show it through safe_text: the answer is a model's."""
    return (
        f"{task}: {100 * answer.share:.0f} % of the answers are {answer.text!r}; given to every question, that one is right "
        f"on {100 * answer.right:.0f} %."
    )


def scores(
    common: Mapping[str, tuple[str, float]], rewards: Mapping[str, Sequence[float]]
) -> dict[str, ConstantAnswer]:
    """commonest()'s answers with what each got on every item of its task; tasks without rewards are left out."""
    return {
        task: ConstantAnswer(text, share, sum(reward == 1.0 for reward in rewards[task]) / len(rewards[task]))
        for task, (text, share) in common.items()
        if rewards.get(task)
    }
