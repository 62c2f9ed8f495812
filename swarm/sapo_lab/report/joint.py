"""Intervals over training seeds and held-out questions together, from the verdict on every question.

Intervals over seeds alone say what other seeds would give on the same questions. Here both are resampled (a two-way
bootstrap, Owen 2007, arXiv 0712.1111: too wide where questions vary most, too narrow with few seeds): seeds with replacement,
and within each task questions with replacement, the same ones for every arm and seed of a draw. Tasks are not resampled: they
were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sapo_lab.report.results import Floats, RunResult
from sapo_lab.report.statistics import format_percent
from sapo_lab.schema import Experiment
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


def _resampled(tasks: Sequence[Sequence[Floats]], seeds: int, draws: int) -> Floats:
    """(draws,) gains. Seeds and questions are given as counts, so that a draw is two products."""
    rng = np.random.default_rng(0)
    of_seed = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=draws) / seeds  # (draws, S)
    totals = np.zeros((2, draws))
    for sides in tasks:
        count = sides[0].shape[1]
        of_question = rng.multinomial(count, np.full(count, 1.0 / count), size=draws) / count  # (draws, Q)
        for side in (0, 1):
            totals[side] += np.einsum("ds,sq,dq->d", of_seed, sides[side], of_question, optimize=True)
    gains: Floats = np.divide(totals[0], totals[1], out=np.full(draws, np.inf), where=totals[1] > 0) - 1.0
    return gains


HEADS = (
    "arm",
    "compared with",
    "seeds",
    "held-out pass@1",
    "gain at the end",
    "95 % over seeds and questions",
    "corrected for {count} comparisons",
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
    """A row for every arm that has verdicts, and for every arm that it is compared with; costs as "mine : theirs"."""
    corrected = 1.0 - 0.05 / comparison_count(experiment)
    known = {name: [run for run in runs if run.verdicts] for name, runs in found.items()}
    result: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        for other in arm.against:
            mine, theirs = ({run.seed: run for run in known.get(name, ())} for name in (arm.name, other))
            seeds = sorted(mine.keys() & theirs.keys())
            if not seeds:
                continue
            ours, others = ({seed: some[seed].verdicts for seed in seeds} for some in (mine, theirs))
            gain, wide = (joint_gain(ours, others, confidence) for confidence in (0.95, corrected))
            pairs = [[some[seed] for seed in seeds] for some in (mine, theirs)]
            steps = [one.run.epochs * one.run.minibatches for one in (arm, experiment.arm(other))]
            line = (
                arm.shown,
                experiment.arm(other).shown,
                ", ".join(map(str, seeds)),
                " : ".join(f"{100 * np.mean([_pass_at_1(run.verdicts) for run in runs]):.2f} %" for runs in pairs),
                format_percent(ConfidenceInterval(gain.value, math.nan, math.nan), 1, signed=True),
                _bounds(gain),
                _bounds(wide),
                " : ".join(f"{np.mean([run.tokens[-1] / run.nodes for run in runs]) / 1e3:.0f}" for runs in pairs),
                " : ".join(
                    f"{each * np.mean([run.rounds for run in runs]):.0f}"
                    for each, runs in zip(steps, pairs, strict=True)
                ),
                " : ".join(f"{np.mean([run.seconds / run.nodes for run in runs]):.0f}" for runs in pairs),
                " : ".join(f"{np.mean([run.cpu_s / run.nodes for run in runs]):.1f}" for runs in pairs),
            )
            result.append(line)
    return result


def _pass_at_1(verdicts: Verdicts) -> float:
    return float(np.mean([values.mean() for values in verdicts.values()]))


def _bounds(interval: ConfidenceInterval) -> str:
    if not math.isfinite(interval.low):
        return "–"
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"
