"""Intervals, pass@k and paired tests: pure functions of numbers, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval; bounds are NaN where there is none."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Both bounds lie on the same side of 0."""
        return self.low > 0.0 or self.high < 0.0


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a binomial proportion. (0, 1) without trials."""
    if trials <= 0:
        return 0.0, 1.0
    p, z = successes / trials, Z95
    scale = 1.0 + z * z / trials
    centre = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right: 1 - C(n-c, k) / C(n, k) (arXiv 2107.03374)."""
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= {samples} samples and 0..{samples} correct, not {correct}.")
    missed: float = math.comb(samples - correct, k) / math.comb(samples, k)
    return 1.0 - missed


def stratified_bootstrap(strata: Sequence[NDArray[np.float64]], seed: int = 0) -> Interval:
    """Mean over all items with a percentile interval, the items resampled inside their task: tasks are fixed, not sampled.

    strata: of each task the (N,) values of its items; an item with all its samples is the unit (a cluster).
    """
    filled = [values for values in strata if values.size]
    if not filled:
        return Interval(math.nan, math.nan, math.nan)
    random = np.random.default_rng(seed)
    sums = np.zeros(RESAMPLES)
    for values in filled:
        for start in range(0, RESAMPLES, 100):
            sampled = random.integers(values.size, size=(min(100, RESAMPLES - start), values.size))
            sums[start : start + len(sampled)] += values[sampled].sum(axis=1)
    count = sum(values.size for values in filled)
    low, high = np.quantile(sums / count, [0.025, 0.975])
    return Interval(float(sum(values.sum() for values in filled) / count), float(low), float(high))


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p-value that wins and losses among discordant pairs are equally likely."""
    discordant = gained + lost
    if discordant == 0:
        return 1.0
    tail = term = 1  # C(n, 0), then C(n, i + 1) = C(n, i) (n - i) / (i + 1)
    for i in range(min(gained, lost)):
        term = term * (discordant - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << discordant))
