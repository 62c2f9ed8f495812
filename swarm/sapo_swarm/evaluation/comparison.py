"""Two results on the same items, compared item by item, so that the difficulty of the items drops out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sapo_swarm.evaluation.items import ItemResult, by_task
from sapo_swarm.evaluation.statistics import Interval, mcnemar_exact, stratified_bootstrap

LEAST_CHANGED = 6
"""Items that must have changed before a change is measurable: of five that all went one way, chance does 2 / 2^5 = 6 % (sign
test), while a bootstrap of one item, or of a few changed ones, has too narrow an interval or none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """After against before on the same items.

    delta, tasks: paired difference of pass@1, overall and per task; their intervals hold 0 where fewer than LEAST_CHANGED items
    changed. gained, lost: items that became right or wrong (majority of samples); p_value: McNemar's exact test on them.
    accuracy_share: the part of the gain that comes from a larger share correct among samples that hold an answer and not from
    more samples holding one (None without a gain): near 1 the model learnt to solve, near 0 it learnt to write the tags.
    """

    delta: Interval
    tasks: Mapping[str, Interval]
    gained: int
    lost: int
    p_value: float
    accuracy_share: float | None


def compare(before: Sequence[ItemResult], after: Sequence[ItemResult], seed: int = 0) -> Comparison:
    """Paired comparison on the same items. Raises ValueError where they differ, before anything is computed."""
    first = {item.ref: item for item in before}
    if len(first) != len(before) or [i for i in after if i.ref not in first] or len(after) != len(before):
        raise ValueError("Before and after must hold the same held-out items. Evaluate both with the same settings.")
    pairs = {task: [(first[i.ref], i) for i in group] for task, group in by_task(after).items()}
    differences = {
        task: np.array([new.rate - old.rate for old, new in group], dtype=np.float64) for task, group in pairs.items()
    }
    gained, lost = gained_and_lost([pair for group in pairs.values() for pair in group])
    delta = _with_zero(stratified_bootstrap(list(differences.values()), seed), *differences.values())
    return Comparison(
        delta=delta,
        tasks={task: _with_zero(stratified_bootstrap([values], seed), values) for task, values in differences.items()},
        gained=gained,
        lost=lost,
        p_value=mcnemar_exact(gained, lost),
        accuracy_share=_accuracy_share(before, after),
    )


def _with_zero(interval: Interval, *differences: NDArray[np.float64]) -> Interval:
    """The interval; it reaches to 0 where too few of the (N,) differences are others than 0."""
    if sum(np.count_nonzero(values) for values in differences) >= LEAST_CHANGED:
        return interval
    return Interval(interval.value, min(interval.low, 0.0), max(interval.high, 0.0))


def gained_and_lost(pairs: Iterable[tuple[ItemResult, ItemResult]]) -> tuple[int, int]:
    """Of pairs (before, after) of the same item: how many became right and how many wrong, by majority of samples."""
    found = [(old.rate > 0.5, new.rate > 0.5) for old, new in pairs]
    return sum(new and not old for old, new in found), sum(old and not new for old, new in found)


def _accuracy_share(before: Sequence[ItemResult], after: Sequence[ItemResult]) -> float | None:
    """The part of the whole gain over samples that comes from the share correct among well-formed ones; None without a gain.

    correct = formed * accuracy splits into mean formed * change of accuracy + mean accuracy * change of formed.
    """
    (formed_0, right_0), (formed_1, right_1) = _shares(before), _shares(after)
    if formed_0 == 0 or formed_1 == 0:
        return 0.0 if right_1 > right_0 else None
    change = right_1 / formed_1 - right_0 / formed_0
    gain = right_1 - right_0
    return (formed_0 + formed_1) / 2 * change / gain if gain > 0 else None


def _shares(results: Sequence[ItemResult]) -> tuple[float, float]:
    """(well-formed samples, correct samples) of all samples."""
    samples = sum(len(item.correct) for item in results)
    formed = sum(sum(item.well_formed) for item in results)
    return formed / samples, sum(sum(item.correct) for item in results) / samples
