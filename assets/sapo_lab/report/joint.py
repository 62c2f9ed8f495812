"""Intervals over training seeds and held-out questions together, and over tasks too, from the verdict on every question.

Intervals over seeds alone say what other seeds would give on the same questions. Here both are resampled (a two-way
bootstrap, Owen 2007, arXiv 0712.1111: too wide where questions vary most, too narrow with few seeds): seeds with replacement,
and within each task questions with replacement, the same ones for every arm and seed of a draw. What is claimed for tasks in
general needs the tasks resampled as well; with a handful of them that interval is wide, as it should be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sapo_lab.report.results import Floats, RunResult
from sapo_lab.report.statistics import format_percent
from sapo_lab.schema import Arm, Experiment
from sapo_swarm.evaluation import ConfidenceInterval

DRAWS = 10_000
Verdicts = Mapping[str, Floats]
"""Task -> (questions,) share of right answers to each."""


def joint_gain(
    mine: Mapping[int, Verdicts], theirs: Mapping[int, Verdicts], confidence: float = 0.95, draws: int = DRAWS
) -> ConfidenceInterval:
    """Relative gain in pass@1 (each task weighs the same) over the seeds that both have, with a percentile interval over
    seeds and questions; NaN without common seeds or without a right answer, NaN bounds with one seed. Deterministic."""
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    tasks = [[np.stack([some[seed][task] for seed in seeds]) for some in (mine, theirs)] for task in mine[seeds[0]]]
    means = [float(np.mean([task[side].mean() for task in tasks])) for side in (0, 1)]
    if not means[1] > 0:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    gain = means[0] / means[1] - 1.0
    if len(seeds) == 1:
        return ConfidenceInterval(gain, math.nan, math.nan)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(_resampled(tasks, len(seeds), draws), ends, method="inverted_cdf")
    return ConfidenceInterval(gain, float(low), float(high))


def joint_difference(mine: Mapping[int, Verdicts], theirs: Mapping[int, Verdicts]) -> ConfidenceInterval:
    """Difference in pass@1 (each task weighs the same) over the seeds that both have, as a share of 1, with a percentile
    interval of 95 % over tasks, seeds and questions. NaN and deterministic as joint_gain; NaN bounds with one task too."""
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return ConfidenceInterval(math.nan, math.nan, math.nan)
    tasks = [[np.stack([some[seed][task] for seed in seeds]) for some in (mine, theirs)] for task in mine[seeds[0]]]
    value = float(np.mean([task[0].mean() - task[1].mean() for task in tasks]))
    if min(len(seeds), len(tasks)) == 1:
        return ConfidenceInterval(value, math.nan, math.nan)
    rates = _resampled_rates(tasks, len(seeds), DRAWS)
    of_task = np.random.default_rng(1).multinomial(len(tasks), np.full(len(tasks), 1.0 / len(tasks)), size=DRAWS)
    differences = np.einsum("dt,td->d", of_task / len(tasks), rates[:, 0] - rates[:, 1])
    low, high = np.quantile(differences, [0.025, 0.975], method="inverted_cdf")
    return ConfidenceInterval(value, float(low), float(high))


def _resampled(tasks: Sequence[Sequence[Floats]], seeds: int, draws: int) -> Floats:
    """(draws,) relative gains over the same tasks."""
    totals = _resampled_rates(tasks, seeds, draws).sum(axis=0)
    gains: Floats = np.divide(totals[0], totals[1], out=np.full(draws, np.inf), where=totals[1] > 0) - 1.0
    return gains


def _resampled_rates(tasks: Sequence[Sequence[Floats]], seeds: int, draws: int) -> Floats:
    """(tasks, 2, draws) pass@1 of both sides. Seeds and questions are given as counts, so that a draw is two products."""
    rng = np.random.default_rng(0)
    of_seed = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=draws) / seeds  # (draws, S)
    rates = np.zeros((len(tasks), 2, draws))
    for place, sides in enumerate(tasks):
        count = sides[0].shape[1]
        of_question = rng.multinomial(count, np.full(count, 1.0 / count), size=draws) / count  # (draws, Q)
        for side in (0, 1):
            rates[place, side] = np.einsum("ds,sq,dq->d", of_seed, sides[side], of_question, optimize=True)
    return rates


HEADS = (
    "arm",
    "compared with",
    "temperature",
    "seeds",
    "held-out pass@1",
    "gain at the end",
    "95 % over seeds and questions",
    "corrected for {count} comparisons",
    "difference in points, 95 % over tasks too",
    "tokens, thousands a node",
    "updates",
    "seconds in rounds, a node",
    "processor seconds, a node",
)


def joint_columns(experiment: Experiment) -> tuple[str, ...]:
    """The columns of `joint_rows`."""
    return tuple(head.format(count=comparison_count(experiment)) for head in HEADS)


def comparison_count(experiment: Experiment) -> int:
    """The number that the experiment registered, else one for each arm and the first arm that it is compared with."""
    return experiment.comparisons or max(1, sum(bool(arm.against) for arm in experiment.arms))


def joint_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A row for every temperature, every arm that has verdicts and every arm that it is compared with; costs as "mine : theirs".
    Every arm is also compared with its untrained models, where their verdicts were saved: an arm that differs from another
    only because one of them learned nothing shows it there."""
    corrected = 1.0 - 0.05 / comparison_count(experiment)
    rows: list[tuple[str, ...]] = []
    for temperature in ("0", "1"):
        greedy = temperature == "0"
        after = {
            name: {run.seed: run.final(greedy) for run in runs if run.final(greedy)} for name, runs in found.items()
        }
        for arm in experiment.arms:
            mine = after.get(arm.name, {})
            before = {run.seed: run.untrained(greedy) for run in found.get(arm.name, ()) if run.untrained(greedy)}
            if mine and before:
                ours = {seed: mine[seed] for seed in before}
                rows.append((arm.shown, "untrained", temperature, *_compare(ours, before, corrected), *[""] * 4))
            for other in arm.against:
                theirs = after.get(other, {})
                seeds = sorted(mine.keys() & theirs.keys())
                if not seeds:
                    continue
                pairs = [[run for run in found[name] if run.seed in seeds] for name in (arm.name, other)]
                ours, others = ({seed: some[seed] for seed in seeds} for some in (mine, theirs))
                cells = (*_compare(ours, others, corrected), *_costs((arm, experiment.arm(other)), pairs))
                rows.append((arm.shown, experiment.arm(other).shown, temperature, *cells))
    return rows


def _compare(mine: Mapping[int, Verdicts], theirs: Mapping[int, Verdicts], corrected: float) -> tuple[str, ...]:
    """The cells from the seeds to the difference in points."""
    gain, wide = (joint_gain(mine, theirs, confidence) for confidence in (0.95, corrected))
    seeds, rates, points = difference_cells(mine, theirs)
    return (
        seeds,
        rates,
        format_percent(ConfidenceInterval(gain.value, math.nan, math.nan), 1, signed=True),
        _bounds(gain),
        _bounds(wide),
        points,
    )


def difference_cells(mine: Mapping[int, Verdicts], theirs: Mapping[int, Verdicts]) -> tuple[str, str, str]:
    """The seeds, pass@1 of both sides, and the difference in points with its interval over tasks, seeds and questions."""
    points = joint_difference(mine, theirs)
    return (
        ", ".join(map(str, sorted(mine))),
        " : ".join(f"{100 * np.mean([_pass_at_1(some[seed]) for seed in some]):.2f} %" for some in (mine, theirs)),
        f"{100 * points.value:+.1f} ({_bounds(points).removesuffix(' %')})",
    )


def _costs(arms: Sequence[Arm], pairs: Sequence[Sequence[RunResult]]) -> tuple[str, ...]:
    """Tokens, updates and seconds of both arms."""
    steps = [arm.run.epochs * arm.run.minibatches for arm in arms]
    return (
        " : ".join(f"{np.mean([run.tokens[-1] / run.nodes for run in runs]) / 1e3:.0f}" for runs in pairs),
        " : ".join(
            f"{each * np.mean([run.rounds for run in runs]):.0f}" for each, runs in zip(steps, pairs, strict=True)
        ),
        " : ".join(f"{np.mean([run.seconds / run.nodes for run in runs]):.0f}" for runs in pairs),
        " : ".join(f"{np.mean([run.cpu_s / run.nodes for run in runs]):.1f}" for runs in pairs),
    )


def _pass_at_1(verdicts: Verdicts) -> float:
    return float(np.mean([values.mean() for values in verdicts.values()]))


def _bounds(interval: ConfidenceInterval) -> str:
    if not math.isfinite(interval.low):
        return "–"
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"


SPREAD_HEADS = (
    "arm",
    "pass@1, untrained",
    "at the end",
    "pass@k, untrained",
    "at the end",
    "entropy, first ten rounds",
    "last ten",
    "unequal groups, last ten",
)


def spread_rows(found: Mapping[str, Sequence[RunResult]], names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row for each arm that was asked with several samples a question: whether it answers more questions, or the same ones
    more surely."""
    rows: list[tuple[str, ...]] = []
    for name, runs in found.items():
        measured = [run for run in runs if run.pass_at_k and run.base_pass_at_k]
        if measured:
            (k,) = {k for run in measured for k, _ in run.pass_at_k.values()}
            rows.append(
                (
                    names[name],
                    f"{100 * np.mean([_pass_at_1(run.base_verdicts) for run in measured]):.1f} %",
                    f"{100 * np.mean([_pass_at_1(run.verdicts) for run in measured]):.1f} %",
                    f"{100 * np.mean([rate for run in measured for _, rate in run.base_pass_at_k.values()]):.1f} %",
                    f"{100 * np.mean([rate for run in measured for _, rate in run.pass_at_k.values()]):.1f} % (k = {k})",
                    f"{np.mean([np.nanmean(run.entropy[:10]) for run in measured]):.2f}",
                    f"{np.mean([np.nanmean(run.entropy[-10:]) for run in measured]):.2f}",
                    f"{100 * np.mean([np.nanmean(run.nonzero_advantage[-10:]) for run in measured]):.0f} %",
                )
            )
    return rows
