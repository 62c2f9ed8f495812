"""Intervals over seeds: few numbers, so Student's t, and paired if two arms share their seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sapo_swarm.evaluation import ConfidenceInterval

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond the list the normal's 1.96 plus 2.4 / df."""


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with this many degrees of freedom."""
    return _T975[freedom - 1] if freedom <= len(_T975) else 1.96 + 2.4 / freedom


def mean_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Mean over seeds with its 95 % interval; NaN bounds for one seed, all NaN for none. NaN values are left out."""
    finite = np.array([v for v in values if math.isfinite(v)], dtype=np.float64)
    if finite.size == 0:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    mean = float(finite.mean())
    if finite.size == 1:
        return ConfidenceInterval(mean, math.nan, math.nan)
    half = t_quantile(finite.size - 1) * float(finite.std(ddof=1)) / math.sqrt(finite.size)
    return ConfidenceInterval(mean, mean - half, mean + half)


def paired_gain(values: Mapping[int, float], against: Mapping[int, float]) -> ConfidenceInterval:
    """Relative gain (0.94 = +94 %) over the seeds that both arms have, ignoring NaN: the ratio of the means, minus 1.

    The interval is that of a ratio of two correlated means: residuals y - ratio * x, over the mean of x (Cochran, Sampling
    Techniques, 3rd ed., section 6.3). A difference over a fixed baseline is too narrow if the gain is large.
    """
    pairs = [(values[seed], against[seed]) for seed in sorted(values.keys() & against.keys())]
    finite = np.array([pair for pair in pairs if all(map(math.isfinite, pair))], dtype=np.float64).reshape(-1, 2)
    y, x = finite.T
    if not x.size or not x.mean() > 0:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    ratio = float(y.mean() / x.mean())
    spread = mean_interval(list((y - ratio * x) / x.mean()))
    return ConfidenceInterval(ratio - 1.0, ratio - 1.0 + spread.low, ratio - 1.0 + spread.high)


def nonzero_advantage_share(p: float, size: int) -> float:
    """Chance that a group of this many independent completions with success rate p has unequal rewards."""
    return 1.0 - (1.0 - p) ** size - p**size


def format_percent(interval: ConfidenceInterval, digits: int = 1, signed: bool = False) -> str:
    """ "1.4 % (1.1 to 1.7)"; "–" for NaN."""
    if not math.isfinite(interval.value):
        return "–"
    sign = "+" if signed else ""
    text = f"{100 * interval.value:{sign}.{digits}f} %"
    if not math.isfinite(interval.low):
        return text
    return f"{text} ({100 * interval.low:{sign}.{digits}f} to {100 * interval.high:{sign}.{digits}f})"


def format_number(interval: ConfidenceInterval) -> str:
    """ "41.4 (38.0 to 44.8)"; "–" for NaN."""
    if not math.isfinite(interval.value):
        return "–"
    text = f"{interval.value:,.1f}"
    if not math.isfinite(interval.low):
        return text
    return f"{text} ({interval.low:,.1f} to {interval.high:,.1f})"
