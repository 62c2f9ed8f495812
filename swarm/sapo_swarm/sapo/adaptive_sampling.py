"""Adaptive sampling: which questions are asked, and how often each, so that each attempt teaches most. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.types import Group, TaskRef

# Difficulty-adaptive sampling: more questions where about half of the attempts succeed. Pure.
#
# The policy gradient of a question with success rate p is as large as the variance of its rewards, p (1 - p): nothing
# is learned from what always or never succeeds (arXiv 2504.03380, 2506.05316). A node holds a Beta posterior of p for
# every task and preset, from its own attempts, and samples in proportion to the expected p (1 - p). Old evidence fades,
# because p moves as the node learns, and a share of all questions stays uniform, so that no task is given up for good.

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


# Adaptive group size: a round's attempts go where one more is most likely to give a group unequal rewards. Pure.
#
# A group trains nothing while its rewards are all equal. With success rate p the chance that a group of n still has
# equal rewards is p^n + (1 - p)^n; over a Beta(a, b) posterior of p these are products of (a + k) / (a + b + k). The
# gain of one more attempt falls with every attempt, so giving each attempt of the budget to the question with the
# largest gain is optimal for the expected number of non-zero-advantage groups. Hard questions get more attempts,
# hopeless and easy ones fewer; the total stays the same (after arXiv 2510.00977, which gives hard prompts larger
# groups, and 2506.05316).

LEAST = 2
"""Attempts that every question gets: a single one makes no group."""
MOST = 4
"""A question gets at most this multiple of the usual group size."""


def chance_nonzero(posterior: SuccessPosterior, size: int) -> float:
    """Expected chance that a group of this many 0/1 rewards has unequal ones."""
    a, b = 1.0 + posterior.successes, 1.0 + posterior.failures
    all_right = all_wrong = 1.0
    for k in range(size):
        all_right *= (a + k) / (a + b + k)
        all_wrong *= (b + k) / (a + b + k)
    return 1.0 - all_right - all_wrong


def group_sizes(posteriors: Sequence[SuccessPosterior], usual: int) -> list[int]:
    """Attempts per question, given the posterior of each: len(posteriors) * usual in all, LEAST to MOST * usual each."""
    sizes = [min(LEAST, usual)] * len(posteriors)
    queue = [(-_adds(posterior, size), i) for i, (posterior, size) in enumerate(zip(posteriors, sizes, strict=True))]
    heapq.heapify(queue)
    for _ in range(len(posteriors) * usual - sum(sizes)):
        _, i = heapq.heappop(queue)
        sizes[i] += 1
        if sizes[i] < MOST * usual:
            heapq.heappush(queue, (-_adds(posteriors[i], sizes[i]), i))
    return sizes


def _adds(posterior: SuccessPosterior, size: int) -> float:
    return chance_nonzero(posterior, size + 1) - chance_nonzero(posterior, size)
