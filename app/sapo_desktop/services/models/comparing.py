"""Two sets of weights on the same held-out questions: answers, sampled and greedy, a paired test for each, one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sapo_backends.base import Sampling
from sapo_desktop.errors import UsageError
from sapo_desktop.services.models.checkpoints import SelectedWeights
from sapo_swarm.evaluation import (
    ConfidenceInterval,
    ItemResult,
    PairedComparison,
    compare_results,
    held_out_items,
    mean_pass_at_k,
    task_scores,
    wilson_interval,
)
from sapo_swarm.scoring.rubric import RubricJudge
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.tasks.own.library import is_judged
from sapo_swarm.types import TaskRef

BOTH = (1.0, 0.0)
"""Temperatures unless one is chosen: sampled as in training, and greedy as in a chat."""
OnProgress = Callable[[float, str], None]
"""(label of the weights, fraction done)."""


@dataclass(frozen=True)
class WeightsComparison:
    """The scores of both on the same items, and the result of comparing them. sampling: how both answered."""

    labels: tuple[str, str]
    before: list[ItemResult]
    after: list[ItemResult]
    comparison: PairedComparison
    temperature: float
    samples: int


def comparison_items(both: Sequence[SelectedWeights], per_task: int, preset: str = "") -> list[TaskRef]:
    """Held-out items of every task that either trains on, in the first one's difficulty unless preset says otherwise.

    Raises UnknownTask where a task has no such preset, UsageError where there are no items here.
    """
    tasks = dict.fromkeys(task for weights in both for task in weights.config.tasks)
    refs = held_out_items(tasks, preset or both[0].config.preset, per_task)
    if not refs:
        raise UsageError(f"There are no held-out rows of {', '.join(tasks)} on this machine: their host keeps them.")
    return refs


def maybe_trained_on(both: Sequence[SelectedWeights], refs: Sequence[TaskRef]) -> int:
    """How many of the questions training of either may have asked, the larger number: see beyond_exclusion()."""
    from sapo_swarm.node.evaluation import beyond_exclusion

    trained = [weights.config for weights in both if weights.checkpoint]
    return max((beyond_exclusion(refs, config.tasks, config.preset) for config in trained), default=0)


async def compare_weights(
    both: tuple[SelectedWeights, SelectedWeights],
    refs: Sequence[TaskRef],
    temperatures: Sequence[float],
    samples: int,
    on_progress: OnProgress,
    judge: RubricJudge | None = None,
) -> list[WeightsComparison]:
    """One comparison per temperature, in this order. The models run one after the other, so that only one is in memory.
    samples: per question; one at temperature 0, as all would be equal. judge: where the tasks are judged ones.

    Raises BackendError, CheckpointCorrupt, JudgeAway.
    """
    longest = max(chosen.config.max_new_tokens for chosen in both)
    samplings = [Sampling(temperature, 1.0, longest) for temperature in temperatures]

    def limit(task: str) -> int:
        return max(new_tokens(weights.config, task) for weights in both)

    first, second = [await _answers(chosen, refs, samplings, samples, limit, on_progress, judge) for chosen in both]
    labels = (both[0].label, both[1].label)
    return [
        WeightsComparison(
            labels, before, after, compare_results(before, after), temperature, _samples(temperature, samples)
        )
        for temperature, before, after in zip(temperatures, first, second, strict=True)
    ]


def _samples(temperature: float, samples: int) -> int:
    return samples if temperature else 1


async def _answers(
    chosen: SelectedWeights,
    refs: Sequence[TaskRef],
    samplings: Sequence[Sampling],
    samples: int,
    limit: Callable[[str], int],
    on_progress: OnProgress,
    judge: RubricJudge | None,
) -> list[list[ItemResult]]:
    from sapo_swarm.node.engine_thread import EngineThread
    from sapo_swarm.node.evaluation import evaluate_questions
    from sapo_swarm.scoring.scorer import Scorer

    host = EngineThread()
    try:
        on_progress(0.0, chosen.label)
        await host.load(lambda: chosen.load(lambda *_: None))
        async with Scorer(answer_format=chosen.config.answer_format, judge=judge) as scorer:
            scorer.in_reasoning = host.engine.tokenizer.opens_reasoning

            per_sampling = [_samples(sampling.temperature, samples) for sampling in samplings]
            results: list[list[ItemResult]] = []
            for place, (sampling, count) in enumerate(zip(samplings, per_sampling, strict=True)):
                start, share = sum(per_sampling[:place]) / sum(per_sampling), count / sum(per_sampling)

                def show(fraction: float, start: float = start, share: float = share) -> None:
                    on_progress(start + share * fraction, chosen.label)

                results.append(await evaluate_questions(host, scorer, refs, sampling, count, show, limit))
            return results
    finally:
        await host.close()


def comparison_table(found: WeightsComparison, names: tuple[str, str] = ("before", "after")) -> Iterator[str]:
    """The result as lines for a person, at most 100 columns wide. names: headings of the two columns, 8 characters each."""
    before, after, comparison = found.before, found.after, found.comparison
    judged = any(map(is_judged, (item.ref for item in after)))
    yield f"{'judged good, %' if judged else 'pass@1, %':<26}{names[0][:8]:>9}{names[1][:8]:>9}   change (95 % interval)"
    old = {score.task: score for score in task_scores(before)}
    for score in task_scores(after):
        change = _change(comparison.tasks[score.task])
        yield f"{score.task:<26}{100 * old[score.task].pass_at_1:>9.1f}{100 * score.pass_at_1:>9.1f}   {change}"
    first, last = mean_pass_at_k(before, 1), mean_pass_at_k(after, 1)
    yield f"{'all':<26}{100 * first:>9.1f}{100 * last:>9.1f}   {_change(comparison.delta)}"
    k = 2
    while k <= found.samples:
        yield f"{f'pass@{k}, all':<26}{100 * mean_pass_at_k(before, k):>9.1f}{100 * mean_pass_at_k(after, k):>9.1f}"
        k *= 2
    formed = [sum(sum(i.well_formed) for i in r) / sum(len(i.correct) for i in r) for r in (before, after)]
    yield f"{'completions with an answer':<26}{100 * formed[0]:>9.1f}{100 * formed[1]:>9.1f}"
    if not all(interval.excludes_zero for interval in (comparison.delta, *comparison.tasks.values())):
        yield "~ no measurable change: the interval holds 0"
    yield ""
    yield f"Items gained {comparison.gained}, lost {comparison.lost}, McNemar p = {comparison.p_value:.2g}"
    if comparison.accuracy_share is not None:
        yield f"Share of the gain that remains among completions that hold an answer: {100 * comparison.accuracy_share:.0f} %"
    yield from _shortcuts(after)


def _shortcuts(after: list[ItemResult]) -> Iterator[str]:
    scores = [score for score in task_scores(after) if score.shortcut]
    for score in scores:
        yield (
            f"Answer-only shortcut: {score.task}, {100 * score.pass_at_1:.1f} % and with the answers to other questions "
            f"{100 * (score.permuted or 0.0):.1f} %: at least half of this score does not come from reading the question."
        )
    if scores:
        yield "Training with --contrast 2 pays nothing for an answer that is also right on one of two other questions."


def _change(interval: ConfidenceInterval) -> str:
    mark = "" if interval.excludes_zero else " ~"
    return f"{100 * interval.value:+6.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f}){mark}"


def temperature_heading(temperature: float) -> str:
    """What a temperature means, above its table."""
    words = {1.0: "Sampled, as in training", 0.0: "Greedy, as a chat answers"}
    return f"{words.get(temperature, 'Sampled')} (temperature {temperature:g})"


def as_json(results: Sequence[WeightsComparison], names: tuple[str, str]) -> dict[str, Any]:
    """Everything about the comparisons, for a program: names and "difference" with a part per temperature ("t0", "t1"), and
    all fields of the first one."""
    parts: dict[str, dict[str, Any]] = {names[0]: {}, names[1]: {}, "difference": {}}
    for result in results:
        key = f"t{result.temperature:g}"
        for name, answers in zip(names, (result.before, result.after), strict=True):
            parts[name][key] = _rates(answers)
        comparison = result.comparison
        parts["difference"][key] = {
            **_interval(comparison.delta),
            "p_value": comparison.p_value,
            "tasks": {task: _interval(interval) for task, interval in comparison.tasks.items()},
        }
    return {**_first(results[0]), **parts}


def _rates(answers: list[ItemResult]) -> dict[str, Any]:
    """pass@1 overall and per task, with 95 % intervals."""
    low, high = wilson_interval(sum(item.rate for item in answers), len(answers))
    tasks = {
        score.task: {"pass_at_1": score.pass_at_1, "low": score.low, "high": score.high, "items": score.items}
        for score in task_scores(answers)
    }
    rate = mean_pass_at_k(answers, 1)
    return {"pass_at_1": rate, "low": low, "high": high, "items": len(answers), "tasks": tasks}


def _interval(interval: ConfidenceInterval) -> dict[str, Any]:
    return {"value": interval.value, "low": interval.low, "high": interval.high, "measurable": interval.excludes_zero}


def _first(found: WeightsComparison) -> dict[str, Any]:
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= found.samples]
    return {
        "before": found.labels[0],
        "after": found.labels[1],
        "items": len(found.after),
        "temperature": found.temperature,
        "samples": found.samples,
        "pass_at_k_before": {k: mean_pass_at_k(found.before, k) for k in ks},
        "pass_at_k_after": {k: mean_pass_at_k(found.after, k) for k in ks},
        "tasks_before": msgspec.to_builtins(task_scores(found.before)),
        "tasks_after": msgspec.to_builtins(task_scores(found.after)),
        "comparison": msgspec.to_builtins(found.comparison),
    }
