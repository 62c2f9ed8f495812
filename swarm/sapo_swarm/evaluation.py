"""Held-out evaluation: which items, and what their verdicts say. Pure statistics in float64; nothing generates here.

A result holds, for each held-out item, the strict 0/1 verdicts of its samples. Two results on the same items compare
item by item (paired), so that the difficulty of the items drops out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.events import Evaluated, TaskScore
from sapo_swarm.scoring.scorer import Scored
from sapo_swarm.tasks.catalogue import held_out_count, preset_of
from sapo_swarm.tasks.seeds import held_out
from sapo_swarm.types import Finish, TaskRef

Z95 = 1.959963984540054
RESAMPLES = 2000


class ItemResult(msgspec.Struct, frozen=True):
    """The samples of one held-out item: a verdict each, whether it held an answer, whether it hit the token limit.

    permuted: verdicts on this item of what was answered to another item of its task; none where there was no other.
    """

    ref: TaskRef
    correct: tuple[bool, ...]
    well_formed: tuple[bool, ...]
    truncated: tuple[bool, ...]
    permuted: tuple[bool, ...] = msgspec.field(default=(), name="swapped")

    def __post_init__(self) -> None:
        if not self.correct or not len(self.correct) == len(self.well_formed) == len(self.truncated):
            raise ValueError(f"{self.ref.label} needs one verdict and two flags a sample.")

    @property
    def rate(self) -> float:
        """Share of correct samples: the item's unbiased pass@1."""
        return sum(self.correct) / len(self.correct)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0.0 or self.high < 0.0

    def sentence(self) -> str:
        """The change in points, or that there is no measurable one."""
        figures = f"{100 * self.value:+.1f} points, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        return figures if self.excludes_zero else f"no measurable change ({figures})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """After against before on the same items.

    delta, tasks: paired difference of pass@1, overall and per task. gained, lost: items that turned right or wrong
    (majority of samples); p_value: McNemar's exact test on them. well_formed_gain: difference of the share correct
    among samples that hold an answer, None where there are none. kept_share: the part of the gain that comes from it
    and not from more samples holding an answer (None without a gain): near 1 the model learnt to solve, near 0 it
    learnt to write the tags.
    """

    delta: Interval
    tasks: Mapping[str, Interval]
    gained: int
    lost: int
    p_value: float
    well_formed_gain: float | None
    kept_share: float | None


def items(tasks: Iterable[str], preset: str, per_task: int, start: int = 0) -> list[TaskRef]:
    """per_task held-out items of every task, from number `start` on: the same ones on every node, unreachable by
    training seeds. Fewer of a task of the person's own that has no more.

    Raises UnknownTask, BadTask.
    """
    return [
        held_out(task, preset_of(task, preset), index)
        for task in tasks
        for index in range(start, held_out_count(task, start + per_task))
    ]


def item_result(ref: TaskRef, scored: Scored, finishes: Sequence[Finish], permuted: Scored | None = None) -> ItemResult:
    """The scorer's verdicts and the engine's finish reasons of one item, and the verdicts on answers to another one.

    Raises ValueError where the counts differ.
    """
    return ItemResult(
        ref,
        correct=tuple(reward == 1.0 for reward in scored.rewards),
        well_formed=scored.well_formed,
        truncated=tuple(finish == "length" for finish in finishes),
        permuted=tuple(reward == 1.0 for reward in permuted.rewards) if permuted else (),
    )


def others(refs: Sequence[TaskRef]) -> dict[int, int]:
    """Place of an item -> place of another one of the same task, around in a circle; tasks with one item are left out."""
    places: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        places.setdefault(ref.dataset, []).append(place)
    pairs = [pair for some in places.values() if len(some) > 1 for pair in zip(some, [*some[1:], some[0]], strict=True)]
    return dict(pairs)


def wilson(successes: float, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a binomial proportion. (0, 1) without trials."""
    if trials <= 0:
        return 0.0, 1.0
    p = successes / trials
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


def mean_pass_at_k(results: Sequence[ItemResult], k: int) -> float:
    """Mean over items; NaN without items."""
    if not results:
        return math.nan
    return float(np.mean([pass_at_k(len(item.correct), sum(item.correct), k) for item in results]))


def bootstrap_mean(values: NDArray[np.float64], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of (N,) per-item values with a percentile interval; an item with all its samples is the unit (a cluster)."""
    if values.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, 100):  # (100, N) at a time
        drawn = random.integers(values.size, size=(min(100, resamples - start), values.size))
        means[start : start + len(drawn)] = values[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def stratified_bootstrap(strata: Sequence[NDArray[np.float64]], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean over all items with the items resampled inside their task: tasks are fixed, not drawn."""
    filled = [values for values in strata if values.size]
    if not filled:
        return Interval(math.nan, math.nan, math.nan)
    random = np.random.default_rng(seed)
    sums = np.zeros(resamples)
    for values in filled:
        for start in range(0, resamples, 100):
            drawn = random.integers(values.size, size=(min(100, resamples - start), values.size))
            sums[start : start + len(drawn)] += values[drawn].sum(axis=1)
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


def task_scores(results: Sequence[ItemResult]) -> tuple[TaskScore, ...]:
    """One score a task, in order of first appearance."""
    return tuple(_task_score(task, group) for task, group in _by_task(results).items())


def evaluated(
    results: Sequence[ItemResult],
    round_number: int,
    temperature: float,
    seconds: float,
    base: Sequence[ItemResult] | None = None,
) -> Evaluated:
    """The event of an evaluation; base: the untrained model's results on the same items. Raises ValueError."""
    rates = np.array([item.rate for item in results], dtype=np.float64)
    low, high = _rate_interval(results)
    change = compare(base, results) if base else None
    return Evaluated(
        round=round_number,
        temperature=temperature,
        items=len(results),
        pass_at_1=float(rates.mean()) if results else 0.0,
        low=low,
        high=high,
        delta=change.delta.value if change else None,
        delta_low=change.delta.low if change else None,
        delta_high=change.delta.high if change else None,
        tasks=task_scores(results),
        seconds=seconds,
    )


def compare(before: Sequence[ItemResult], after: Sequence[ItemResult], seed: int = 0) -> Comparison:
    """Paired comparison on the same items. Raises ValueError where they differ, before anything is computed."""
    first = {item.ref: item for item in before}
    if len(first) != len(before) or [i for i in after if i.ref not in first] or len(after) != len(before):
        raise ValueError("Before and after must hold the same held-out items. Evaluate both with the same settings.")
    pairs = {task: [(first[i.ref], i) for i in group] for task, group in _by_task(after).items()}
    differences = {
        task: np.array([new.rate - old.rate for old, new in group], dtype=np.float64) for task, group in pairs.items()
    }
    gained, lost = turned([pair for group in pairs.values() for pair in group])
    delta = stratified_bootstrap(list(differences.values()), seed)
    conditional, kept = _well_formed_gain(before, after)
    return Comparison(
        delta=delta,
        tasks={task: bootstrap_mean(values, seed) for task, values in differences.items()},
        gained=gained,
        lost=lost,
        p_value=mcnemar_exact(gained, lost),
        well_formed_gain=conditional,
        kept_share=kept,
    )


def turned(pairs: Iterable[tuple[ItemResult, ItemResult]]) -> tuple[int, int]:
    """Of pairs (before, after) of the same item: how many turned right and how many wrong, by majority of samples."""
    found = [(old.rate > 0.5, new.rate > 0.5) for old, new in pairs]
    return sum(new and not old for old, new in found), sum(old and not new for old, new in found)


def _well_formed_gain(before: Sequence[ItemResult], after: Sequence[ItemResult]) -> tuple[float | None, float | None]:
    """(change of the share correct among well-formed samples, its part of the whole gain over samples).

    correct = formed * accuracy splits into mean formed * change of accuracy + mean accuracy * change of formed.
    """
    (formed_0, right_0), (formed_1, right_1) = _shares(before), _shares(after)
    if formed_0 == 0 or formed_1 == 0:
        return None, 0.0 if right_1 > right_0 else None
    change = right_1 / formed_1 - right_0 / formed_0
    gain = right_1 - right_0
    return change, (formed_0 + formed_1) / 2 * change / gain if gain > 0 else None


def _shares(results: Sequence[ItemResult]) -> tuple[float, float]:
    """(well-formed samples, correct samples) of all samples."""
    samples = sum(len(item.correct) for item in results)
    formed = sum(sum(item.well_formed) for item in results)
    return formed / samples, sum(sum(item.correct) for item in results) / samples


def _by_task(results: Iterable[ItemResult]) -> dict[str, list[ItemResult]]:
    grouped: dict[str, list[ItemResult]] = {}
    for item in results:
        grouped.setdefault(item.ref.dataset, []).append(item)
    return grouped


def _task_score(task: str, results: Sequence[ItemResult]) -> TaskScore:
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
    )


def _rate_interval(results: Sequence[ItemResult]) -> tuple[float, float]:
    """Wilson over items (an item's mean counts once), which is exact for one sample an item and wide for more."""
    return wilson(sum(item.rate for item in results), len(results))
