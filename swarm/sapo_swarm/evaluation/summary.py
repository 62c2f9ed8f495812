"""The results of one evaluation, by task and as the event that goes to the journal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sapo_swarm.evaluation.comparison import compare
from sapo_swarm.evaluation.items import ItemResult, by_task
from sapo_swarm.evaluation.statistics import pass_at_k, wilson
from sapo_swarm.events import Evaluated, GreedyScore, TaskScore


def evaluated(
    results: Sequence[ItemResult],
    round_number: int,
    seconds: float,
    base: Sequence[ItemResult] | None = None,
    base_missing: int = 0,
    asked: int = 0,
) -> Evaluated:
    """The event of an evaluation at temperature 1; base: the untrained model's results on the same items, None where it has not
    answered base_missing of them. asked: see Evaluated. Raises ValueError."""
    rates = np.array([item.rate for item in results], dtype=np.float64)
    low, high = _rate_interval(results)
    change = compare(base, results) if base else None
    return Evaluated(
        round=round_number,
        temperature=1.0,
        items=len(results),
        pass_at_1=float(rates.mean()) if results else 0.0,
        low=low,
        high=high,
        delta=change.delta.value if change else None,
        delta_low=change.delta.low if change else None,
        delta_high=change.delta.high if change else None,
        tasks=task_scores(results, base or ()),
        seconds=seconds,
        base_missing=base_missing,
        asked=asked,
    )


def greedy_score(
    results: Sequence[ItemResult], base: Sequence[ItemResult] | None = None, base_missing: int = 0
) -> GreedyScore:
    """The part of an evaluation that was answered at temperature 0. base, base_missing: see evaluated(). Raises ValueError."""
    low, high = _rate_interval(results)
    change = compare(base, results) if base else None
    return GreedyScore(
        items=len(results),
        pass_at_1=float(np.mean([item.rate for item in results])) if results else 0.0,
        low=low,
        high=high,
        delta=change.delta.value if change else None,
        delta_low=change.delta.low if change else None,
        delta_high=change.delta.high if change else None,
        tasks=task_scores(results, base or ()),
        base_missing=base_missing,
    )


def task_scores(results: Sequence[ItemResult], base: Sequence[ItemResult] = ()) -> tuple[TaskScore, ...]:
    """One score a task, in order of first appearance. base: the untrained model's results on the same items, if known."""
    before = {task: float(np.mean([item.rate for item in group])) for task, group in by_task(base).items()}
    return tuple(_task_score(task, group, before.get(task)) for task, group in by_task(results).items())


def mean_pass_at_k(results: Sequence[ItemResult], k: int) -> float:
    """Mean over items; NaN without items."""
    if not results:
        return math.nan
    return float(np.mean([pass_at_k(len(item.correct), sum(item.correct), k) for item in results]))


def _task_score(task: str, results: Sequence[ItemResult], base: float | None) -> TaskScore:
    permuted = [sum(item.permuted) / len(item.permuted) for item in results if item.permuted]
    samples = sum(len(item.correct) for item in results)
    low, high = _rate_interval(results)
    return TaskScore(
        task=task,
        items=len(results),
        pass_at_1=float(np.mean([item.rate for item in results])),
        low=low,
        high=high,
        well_formed=sum(sum(item.well_formed) for item in results) / samples,
        truncated=sum(sum(item.truncated) for item in results) / samples,
        permuted=float(np.mean(permuted)) if permuted else None,
        base=base,
    )


def _rate_interval(results: Sequence[ItemResult]) -> tuple[float, float]:
    """Wilson over items (an item's mean counts once), which is exact for one sample an item and wide for more."""
    return wilson(sum(item.rate for item in results), len(results))
