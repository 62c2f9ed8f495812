"""Held-out evaluation: which items, and what the verdicts on them say. Pure; nothing generates here.

A result holds the strict 0/1 verdicts on each item's samples. Two results on the same items are compared pair by pair.

From top to bottom: statistics (intervals, pass@k, paired tests), the items and their verdicts, after against before on the
same items, and scores by task with the event of an evaluation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, GreedyScore, PairedSoFar, TaskScore
from sapo_swarm.scoring.scorer import ScoredTexts
from sapo_swarm.tasks.catalogue import LIBRARY_PRESET, SOFT, held_out, held_out_count, preset_of
from sapo_swarm.types import Finish, TaskRef

# Intervals, pass@k and paired tests: pure functions of numbers, in float64.

Z95 = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A value with its 95 % interval; bounds are NaN where there is none."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Both bounds lie on the same side of 0."""
        return self.low > 0.0 or self.high < 0.0


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
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


def stratified_bootstrap(strata: Sequence[NDArray[np.float64]], seed: int = 0) -> ConfidenceInterval:
    """Mean over all items with a percentile interval, items resampled within their task: tasks are fixed, not sampled.

    strata: for each task the (N,) values of its items; the unit is an item with all its samples (a cluster).
    """
    filled = [values for values in strata if values.size]
    if not filled:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    random = np.random.default_rng(seed)
    sums = np.zeros(RESAMPLES)
    for values in filled:
        for start in range(0, RESAMPLES, 100):
            sampled = random.integers(values.size, size=(min(100, RESAMPLES - start), values.size))
            sums[start : start + len(sampled)] += values[sampled].sum(axis=1)
    count = sum(values.size for values in filled)
    low, high = np.quantile(sums / count, [0.025, 0.975])
    return ConfidenceInterval(float(sum(values.sum() for values in filled) / count), float(low), float(high))


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


# Which held-out items are asked, and the verdicts on the samples of one item.


def held_out_items(tasks: Iterable[str], preset: str, per_task: int, start: int = 0) -> list[TaskRef]:
    """per_task held-out items of every task, from number `start` on: the same on every node, unreachable by training seeds.
    Fewer for a custom task that has no more.

    Raises UnknownTask, BadTask.
    """
    return [
        held_out(task, preset_of(task, preset), index)
        for task in tasks
        for index in range(start, held_out_count(task, start + per_task))
    ]


FEW_ITEMS, USUAL_ITEMS = 64, 144
"""Items of a regular evaluation over all tasks: the minimum if the tasks have that many (16 of one task determine a score to
+-25 points), and the maximum, 16 of each of the nine usual tasks."""


def eval_items(config: RunConfig) -> int:
    """Held-out items per task in a regular evaluation: the setting, or chosen by the number of tasks, so that a single custom
    task is measured on more than a few rows and many tasks do not cost many minutes."""
    count = max(len(config.tasks), 1)
    return config.eval_items or max(1, FEW_ITEMS // count, min(16, USUAL_ITEMS // count))


def regular_items(config: RunConfig) -> int:
    """Held-out items that a regular evaluation asks, whether or not they regenerate. Raises UnknownTask, BadTask."""
    return len(held_out_items(config.tasks, config.preset, eval_items(config)))


def held_out_name(tasks: Iterable[str], preset: str) -> str:
    """Identifies the held-out items of these tasks, in any order: 16 hex digits that change with the preset, the generator's
    version, the judging rule or the version of a custom task. Raises UnknownTask, BadTask."""
    first = [held_out(task, preset_of(task, preset), 0) for task in sorted(tasks)]
    text = "\n".join(f"{ref.dataset}/{ref.preset}/{ref.generator}{_rule(ref)}" for ref in first)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rule(ref: TaskRef) -> str:
    return "/exact" if ref.dataset in SOFT and ref.preset != LIBRARY_PRESET else ""


class ItemResult(msgspec.Struct, frozen=True):
    """The samples of one held-out item: for each the verdict, whether it held an answer, whether it hit the token limit.

    permuted: verdicts on this item for the answers to another item of its task (the answer-permutation check); empty if there
    was no other.
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


def item_result(
    ref: TaskRef, scored: ScoredTexts, finishes: Sequence[Finish], permuted: ScoredTexts | None = None
) -> ItemResult:
    """The scorer's verdicts and the engine's finish reasons for one item, and the verdicts on answers to another one.

    Raises ValueError if the counts differ.
    """
    return ItemResult(
        ref,
        correct=tuple(reward == 1.0 for reward in scored.rewards),
        well_formed=scored.well_formed,
        truncated=tuple(finish == "length" for finish in finishes),
        permuted=tuple(reward == 1.0 for reward in permuted.rewards) if permuted else (),
    )


def permutation_partners(refs: Sequence[TaskRef]) -> dict[int, int]:
    """Index of an item -> index of the item whose answers it gets in the answer-permutation check: the next one of the same
    task, for the last one the first. Tasks with one item are left out."""
    places: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        places.setdefault(ref.dataset, []).append(place)
    pairs = [pair for some in places.values() if len(some) > 1 for pair in zip(some, [*some[1:], some[0]], strict=True)]
    return dict(pairs)


def by_task(results: Iterable[ItemResult]) -> dict[str, list[ItemResult]]:
    """Results by task, tasks in order of first appearance."""
    grouped: dict[str, list[ItemResult]] = {}
    for item in results:
        grouped.setdefault(item.ref.shown, []).append(item)
    return grouped


# Two results on the same items, compared item by item, so that the difficulty of the items drops out.

LEAST_CHANGED = 6
"""Items that must have changed before a change is measurable: if five all went one way, chance explains that with 2 / 2^5 = 6
% (sign test), while a bootstrap of one item, or of a few changed ones, has too narrow an interval or none."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """After against before on the same items.

    delta, tasks: paired difference of pass@1, overall and per task; their intervals include 0 if fewer than LEAST_CHANGED
    items changed. gained, lost: items that became right or wrong (majority of samples); p_value: McNemar's exact test on
    them. accuracy_share: the part of the gain due to a larger share correct among samples that hold an answer, rather than to
    more samples holding one (None without a gain): near 1 the model learned to solve, near 0 it learned to write the tags.
    """

    delta: ConfidenceInterval
    tasks: Mapping[str, ConfidenceInterval]
    gained: int
    lost: int
    p_value: float
    accuracy_share: float | None


def compare_results(before: Sequence[ItemResult], after: Sequence[ItemResult], seed: int = 0) -> PairedComparison:
    """Paired comparison on the same items. Raises ValueError if they differ, before anything is computed."""
    first = {item.ref: item for item in before}
    if len(first) != len(before) or [i for i in after if i.ref not in first] or len(after) != len(before):
        raise ValueError("Before and after must hold the same held-out items. Evaluate both with the same settings.")
    pairs = {task: [(first[i.ref], i) for i in group] for task, group in by_task(after).items()}
    differences = {
        task: np.array([new.rate - old.rate for old, new in group], dtype=np.float64) for task, group in pairs.items()
    }
    gained, lost = gained_and_lost([pair for group in pairs.values() for pair in group])
    delta = _with_zero(stratified_bootstrap(list(differences.values()), seed), *differences.values())
    return PairedComparison(
        delta=delta,
        tasks={task: _with_zero(stratified_bootstrap([values], seed), values) for task, values in differences.items()},
        gained=gained,
        lost=lost,
        p_value=mcnemar_exact(gained, lost),
        accuracy_share=_accuracy_share(before, after),
    )


def _with_zero(interval: ConfidenceInterval, *differences: NDArray[np.float64]) -> ConfidenceInterval:
    """The interval; it reaches to 0 where too few of the (N,) differences are others than 0. Where all items changed alike, which
    leaves a bootstrap no width, it reaches as far as Wilson's for all of N."""
    if sum(np.count_nonzero(values) for values in differences) >= LEAST_CHANGED:
        if interval.low < interval.high:
            return interval
        items = sum(values.size for values in differences)
        least = interval.value * wilson_interval(items, items)[0]
        return ConfidenceInterval(interval.value, min(interval.low, least), max(interval.high, least))
    return ConfidenceInterval(interval.value, min(interval.low, 0.0), max(interval.high, 0.0))


def gained_and_lost(pairs: Iterable[tuple[ItemResult, ItemResult]]) -> tuple[int, int]:
    """Among pairs (before, after) of the same item: how many became right and how many wrong, by majority of samples."""
    verdicts = [(old.rate > 0.5, new.rate > 0.5) for old, new in pairs]
    return sum(new and not old for old, new in verdicts), sum(old and not new for old, new in verdicts)


def _accuracy_share(before: Sequence[ItemResult], after: Sequence[ItemResult]) -> float | None:
    """The part of the total gain over samples that comes from the share correct among well-formed ones; None without a gain.

    correct = formed * accuracy splits into mean formed * change of accuracy + mean accuracy * change of formed.
    """
    (formed_0, right_0), (formed_1, right_1) = _shares(before), _shares(after)
    if formed_0 == 0 or formed_1 == 0:
        return 0.0 if right_1 > right_0 else None
    change = right_1 / formed_1 - right_0 / formed_0
    gain = right_1 - right_0
    return (formed_0 + formed_1) / 2 * change / gain if gain > 0 else None


def _shares(results: Sequence[ItemResult]) -> tuple[float, float]:
    """(well-formed samples, correct samples) as shares of all samples."""
    samples = sum(len(item.correct) for item in results)
    formed = sum(sum(item.well_formed) for item in results)
    return formed / samples, sum(sum(item.correct) for item in results) / samples


# The results of one evaluation, by task and as the event that goes to the journal.


def evaluation_event(
    results: Sequence[ItemResult],
    round_number: int,
    seconds: float,
    base: Sequence[ItemResult] | None = None,
    base_missing: int = 0,
    asked: int = 0,
) -> Evaluated:
    """The event of an evaluation at temperature 1. base: the untrained model's results on the same items, None if it has not
    answered base_missing of them. asked: see Evaluated. Raises ValueError."""
    rates = np.array([item.rate for item in results], dtype=np.float64)
    low, high = _rate_interval(results)
    change = compare_results(base, results) if base else None
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


LEAST_PAIRED = 12
"""Below this many questions that both models have answered, there is no difference to show yet."""


def compare_so_far(results: Sequence[ItemResult], base: Mapping[TaskRef, ItemResult]) -> PairedSoFar | None:
    """The comparison on the items that the base has answered too; None if those are few. base: by item."""
    after = [item for item in results if item.ref in base]
    if len(after) < LEAST_PAIRED:
        return None
    before = [base[item.ref] for item in after]
    delta = compare_results(before, after).delta
    was, now = (float(np.mean([item.rate for item in side])) for side in (before, after))
    return PairedSoFar(len(after), was, now, delta.value, delta.low, delta.high)


def greedy_score(
    results: Sequence[ItemResult], base: Sequence[ItemResult] | None = None, base_missing: int = 0
) -> GreedyScore:
    """The part of an evaluation that was answered at temperature 0. base, base_missing: see evaluation_event(). Raises
    ValueError."""
    low, high = _rate_interval(results)
    change = compare_results(base, results) if base else None
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
    """One score per task, in order of first appearance. base: the untrained model's results on the same items, if known."""
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
    """Wilson over items (an item's mean counts once): exact for one sample per item, wide for more."""
    return wilson_interval(sum(item.rate for item in results), len(results))
