"""Where a gain comes from: held-out pass@1 by task, the gain without the task that gained most, and what remains of it under
the answer-permutation check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sapo_lab.report.results import HeldOut, RunResult
from sapo_lab.report.statistics import format_percent, mean_interval, paired_gain
from sapo_lab.schema import Experiment
from sapo_swarm.evaluation import ConfidenceInterval


def task_gain_columns(tasks: Sequence[str]) -> tuple[str, ...]:
    """The columns of `task_gain_rows`."""
    return ("arm", "compared with", *tasks, "gain", "without the task that gained most", "gain without it")


def tasks_of(found: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """The tasks that were evaluated, in order of first appearance."""
    points = [run.last for runs in found.values() for run in runs if run.last is not None]
    return list(dict.fromkeys(task for point in points for task in point.tasks))


def task_gain_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A row for every arm with a final result, and for every arm that it is compared with: pass@1 of both in percent, over
    the seeds that both have."""
    tasks = tasks_of(found)
    result: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        mine = _last(found.get(arm.name, ()))
        if not mine:
            continue
        for other in [name for name in arm.against if _last(found.get(name, ()))] or [""]:
            theirs = _last(found.get(other, ()))
            shared = mine.keys() & theirs.keys() or mine.keys()
            both = [{seed: some[seed] for seed in shared} for some in (mine, theirs) if shared <= some.keys()]
            cells = [_cell(both, task) for task in tasks]
            gain, left_out, without = gain_without_top_task(mine, theirs)
            shown = experiment.arm(other).shown if other else "–"
            summary = (format_percent(gain, 0, signed=True), left_out or "–", format_percent(without, 0, signed=True))
            result.append((arm.shown, shown, *cells, *summary))
    return result


def gain_without_top_task(
    mine: Mapping[int, HeldOut], theirs: Mapping[int, HeldOut]
) -> tuple[ConfidenceInterval, str, ConfidenceInterval]:
    """From seed -> results: relative gain over all tasks, the task that gained most, the gain over the others; NaN and ""
    without common seeds, if no task gained, and if there is only one task."""
    seeds = sorted(mine.keys() & theirs.keys())
    nothing = mean_interval([])
    if not seeds:
        return nothing, "", nothing
    tasks = [
        task for task in mine[seeds[0]].tasks if all(task in point[s].tasks for point in (mine, theirs) for s in seeds)
    ]
    gains = {task: sum(mine[s].tasks[task] - theirs[s].tasks[task] for s in seeds) for task in tasks}
    top_task = max(gains, key=lambda task: gains[task], default="")
    rest = [task for task in tasks if task != top_task]
    if not rest or gains[top_task] <= 0:
        return _gain(mine, theirs, seeds, tasks), "", nothing
    return _gain(mine, theirs, seeds, tasks), top_task, _gain(mine, theirs, seeds, rest)


def permuted_heads(tasks: Sequence[str]) -> tuple[str, ...]:
    """The columns of `permuted_lines`."""
    return ("arm", "compared with", *tasks, "all", "all, less answer-permutation score", "gain in that")


def permuted_lines(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A row for every arm in which it was measured, and for every arm that it is compared with: pass@1 in percent, and that
    of the answer-permutation check, means over seeds; the difference, and its relative gain paired by seed."""
    tasks = tasks_of(found)
    result: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        points = _permuted(found.get(arm.name, ()))
        measured = [task for task in tasks if all(task in point.tasks for point in points.values())]
        if not points or not measured:
            continue
        pairs = [[(point.tasks[task], point.permuted[task]) for task in measured] for point in points.values()]
        means = 100 * np.array(pairs, dtype=np.float64).mean(axis=0)  # (measured, 2)
        by_task = {task: f"{own:.1f} : {permuted:.1f}" for task, (own, permuted) in zip(measured, means, strict=True)}
        own, permuted = means.mean(axis=0)
        score = _reading_score(points)
        cells = (*(by_task.get(task, "–") for task in tasks), f"{own:.1f} : {permuted:.1f}")
        for other in [name for name in arm.against if _permuted(found.get(name, ()))] or [""]:
            gain = paired_gain(score, _reading_score(_permuted(found.get(other, ()))))
            shown = experiment.arm(other).shown if other else "–"
            line = (
                arm.shown,
                shown,
                *cells,
                format_percent(mean_interval(list(score.values())), 2),
                format_percent(gain, 0, signed=True),
            )
            result.append(line)
    return result


def _permuted(runs: Sequence[RunResult]) -> dict[int, HeldOut]:
    """The last results of the seeds in which the answer-permutation check covered every task."""
    return {seed: point for seed, point in _last(runs).items() if set(point.tasks) <= point.permuted.keys()}


def _reading_score(points: Mapping[int, HeldOut]) -> dict[int, float]:
    """Seed -> pass@1 over all tasks minus that of the answer-permutation check."""
    return {seed: float(np.mean([p.tasks[t] - p.permuted[t] for t in p.tasks])) for seed, p in points.items()}


def _last(runs: Sequence[RunResult]) -> dict[int, HeldOut]:
    return {run.seed: run.last for run in runs if run.last is not None}


def _cell(both: Sequence[Mapping[int, HeldOut]], task: str) -> str:
    """Means over seeds; "–" if the arm does not have the task."""
    rates = [[point.tasks[task] for point in points.values() if task in point.tasks] for points in both]
    return " : ".join(f"{100 * float(np.mean(values)):.1f}" if values else "–" for values in rates if rates[0]) or "–"


def _gain(
    mine: Mapping[int, HeldOut], theirs: Mapping[int, HeldOut], seeds: Sequence[int], tasks: Sequence[str]
) -> ConfidenceInterval:
    first, second = ({s: float(np.mean([p[s].tasks[t] for t in tasks])) for s in seeds} for p in (mine, theirs))
    return paired_gain(first, second)
