"""Difficulty-adaptive sampling: more questions where about half of the attempts succeed. Pure.

The policy gradient of a question with success rate p is as large as the variance of its rewards, p (1 - p): nothing
is learned from what always or never succeeds (arXiv 2504.03380, 2506.05316). A node holds a Beta posterior of p for
every task and preset, from its own attempts, and samples in proportion to the expected p (1 - p). Old evidence fades,
because p moves as the node learns, and a share of all questions stays uniform, so that no task is given up for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.types import Group, TaskRef

FADE = 1 / 32
"""Share of a posterior's evidence that fades with each new group: the last 32 groups of a task count."""
UNIFORM = 0.2
"""Share of the questions that are sampled uniformly, whatever the posteriors say."""


class SuccessPosterior(msgspec.Struct, frozen=True):
    """Beta(1 + successes, 1 + failures) of a success rate; partial credit counts in part."""

    successes: float = 0.0
    failures: float = 0.0

    @property
    def mean(self) -> float:
        """The expected success rate."""
        return (1.0 + self.successes) / (2.0 + self.successes + self.failures)

    @property
    def variance(self) -> float:
        """The expected p (1 - p): a b / ((a + b) (a + b + 1)) for Beta(a, b)."""
        a, b = 1.0 + self.successes, 1.0 + self.failures
        return a * b / ((a + b) * (a + b + 1.0))

    def after(self, rewards: Sequence[float], fade: float = FADE) -> SuccessPosterior:
        """The posterior after one more group; rewards in [0, 1]."""
        remaining, won = 1.0 - fade, float(sum(rewards))
        return SuccessPosterior(remaining * self.successes + won, remaining * self.failures + len(rewards) - won)


Posteriors = Mapping[str, SuccessPosterior]
"""By difficulty_key()."""


def difficulty_key(dataset: str, preset: str) -> str:
    """Identifies a task at a difficulty."""
    return f"{dataset}/{preset}"


def key_of(ref: TaskRef) -> str:
    """The difficulty_key of a question."""
    return difficulty_key(ref.dataset, ref.preset)


def update_posteriors(posteriors: dict[str, SuccessPosterior], groups: Iterable[Group]) -> None:
    """Add the rewards of local groups."""
    for group in groups:
        name = key_of(group.question.ref)
        posteriors[name] = posteriors.get(name, SuccessPosterior()).after(group.rewards)


def sampling_weights(
    posteriors: Posteriors, candidates: Sequence[str], uniform: float = UNIFORM
) -> NDArray[np.float64]:
    """(N,) probabilities of the candidates (difficulty_key names): uniform / N, the rest in proportion to the expected p (1 -
    p)."""
    expected = np.array([posteriors.get(name, SuccessPosterior()).variance for name in candidates], dtype=np.float64)
    result: NDArray[np.float64] = uniform / len(candidates) + (1.0 - uniform) * expected / expected.sum()
    return result
