"""What a node has trained on so far, and how new a group is beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_swarm.tasks.prompts import extract_answer
from sapo_swarm.types import Group

Seen = Mapping[str, int]
"""Key of keys(group) -> times trained on."""


def keys(group: Group) -> list[str]:
    """The task, and each distinct correct answer to it: questions are always fresh, what they teach is not."""
    task = group.question.ref.dataset
    answers = {extract_answer(r.text) or "" for r in group.rollouts if r.reward >= 1.0}
    return [task, *(f"{task}={answer}" for answer in sorted(answers))]


def observe(seen: Counter[str], groups: Iterable[Group]) -> None:
    """Count groups that went into an update."""
    for group in groups:
        seen.update(keys(group))


def novelty(groups: Sequence[Group], seen: Seen) -> NDArray[np.float64]:
    """(N,) in (0, 1]: 1 for a task and answers never trained on, less the more often they were.

    The geometric mean of 1 / sqrt(1 + count) over the task and its answers, as a count-based bonus of exploration
    (arXiv 1606.01868, section 2).
    """
    return np.array([np.exp(np.mean([-0.5 * np.log1p(seen.get(key, 0)) for key in keys(g)])) for g in groups])
