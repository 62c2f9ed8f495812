"""Adaptive group size: a round's attempts go where one more is most likely to give a group unequal rewards. Pure.

A group trains nothing while its rewards are all equal. With success rate p a group of n is still so with p^n + (1 - p)^n;
over a Beta(a, b) posterior of p (sapo.difficulty) these are products of (a + k) / (a + b + k). What one more attempt adds
falls with every attempt, so giving each attempt of the budget to the question where it adds most is optimal for the
expected number of non-zero-advantage groups. Hard questions get more attempts, hopeless and easy ones fewer; the sum stays
(after arXiv 2510.00977, which gives hard prompts larger groups, and 2506.05316).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sapo_swarm.sapo.difficulty import Posterior

LEAST = 2
"""Attempts that every question gets: one has no group."""
MOST = 4
"""Times the usual group size that a question gets at most."""


def chance_nonzero(posterior: Posterior, size: int) -> float:
    """Expected chance that a group of so many 0/1 rewards has unequal ones."""
    a, b = 1.0 + posterior.successes, 1.0 + posterior.failures
    all_right = all_wrong = 1.0
    for k in range(size):
        all_right *= (a + k) / (a + b + k)
        all_wrong *= (b + k) / (a + b + k)
    return 1.0 - all_right - all_wrong


def group_sizes(posteriors: Sequence[Posterior], usual: int) -> list[int]:
    """Attempts at each question, given the posterior of each: len(posteriors) * usual in all, LEAST to MOST * usual each."""
    sizes = [min(LEAST, usual)] * len(posteriors)
    queue = [(-_adds(posterior, size), i) for i, (posterior, size) in enumerate(zip(posteriors, sizes, strict=True))]
    heapq.heapify(queue)
    for _ in range(len(posteriors) * usual - sum(sizes)):
        _, i = heapq.heappop(queue)
        sizes[i] += 1
        if sizes[i] < MOST * usual:
            heapq.heappush(queue, (-_adds(posteriors[i], sizes[i]), i))
    return sizes


def _adds(posterior: Posterior, size: int) -> float:
    return chance_nonzero(posterior, size + 1) - chance_nonzero(posterior, size)
