"""The rows of the report: every figure with its interval over seeds, beside the paper's if it has the same arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sapo_lab.report.results import Floats, RunResult, at_same_tokens, select_comparable_runs
from sapo_lab.report.statistics import format_number, format_percent, mean_interval, paired_gain
from sapo_lab.running.judge import BLOCK, better_from
from sapo_lab.schema import Arm, ArmConditions, Experiment
from sapo_swarm.evaluation import ConfidenceInterval

PAPER_TOTAL: Mapping[tuple[int, int], float] = {(8, 0): 561.79, (6, 2): 854.43, (4, 4): 1093.31, (2, 6): 945.87}
"""(I, J) -> total reward over agents and 2000 rounds (arXiv 2509.08721, section 5)."""
NOTHING = ConfidenceInterval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class MetricGain:
    """A figure of an arm and its relative gain over the arm it is compared with (NaN without one)."""

    value: ConfidenceInterval
    gain: ConfidenceInterval = NOTHING


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One arm beside another (or none). Totals are sums over nodes and rounds.

    paper: the paper's total, NaN if it has no such arm. held_out: pass@1 on all items at the end. equal_tokens: pass@1 of
    this arm and the gain over the other when both had generated as many tokens as the shorter of the two. trained_groups:
    local groups with a non-zero advantage and external groups that a node has trained on. round_seconds: wall time of a node
    in all phases of its rounds, without evaluations.
    """

    arm: Arm
    against: str
    seeds: tuple[int, ...]
    rounds: int
    finished: bool
    paper: float
    batch: MetricGain
    local: MetricGain
    external: ConfidenceInterval
    nonzero_advantage: ConfidenceInterval
    base: ConfidenceInterval
    held_out: MetricGain
    equal_tokens: MetricGain
    forgetting: ConfidenceInterval
    distinct: ConfidenceInterval
    planted: ConfidenceInterval
    tokens: ConfidenceInterval
    megabytes: ConfidenceInterval
    round_seconds: ConfidenceInterval
    minutes: ConfidenceInterval
    trained_groups: tuple[float, float]
    judged: str


def comparison_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[ComparisonRow]:
    """A row for every arm that has runs and every arm that it is compared with.

    Only finished runs are compared, see results.select_comparable_runs.
    """
    chosen = select_comparable_runs(found)
    ended = {name: runs if runs[0].finished else [] for name, runs in chosen.items()}
    return [
        _row(arm, chosen[arm.name], other, ended.get(other, []) if ended[arm.name] else [])
        for arm in experiment.arms
        if arm.name in found
        for other in arm.against or ("",)
    ]


def _row(arm: Arm, runs: Sequence[RunResult], other: str, against: Sequence[RunResult]) -> ComparisonRow:
    plain = (arm.run.local_groups, arm.run.external_groups)
    return ComparisonRow(
        arm=arm,
        against=other,
        seeds=tuple(run.seed for run in runs),
        rounds=max(run.rounds for run in runs),
        finished=all(run.finished for run in runs),
        paper=PAPER_TOTAL.get(plain, math.nan) if is_plain(arm) else math.nan,
        batch=_reward(runs, against, "batch"),
        local=_reward(runs, against, "local"),
        external=mean_interval([_nanmean(run.external) for run in runs]),
        nonzero_advantage=mean_interval([_nanmean(run.nonzero_advantage) for run in runs]),
        base=mean_interval([run.base.pass_at_1 if run.base else math.nan for run in runs]),
        held_out=_compared(_last(runs), _last(against)),
        equal_tokens=_equal_tokens(runs, against),
        forgetting=mean_interval([run.forgetting() for run in runs]),
        distinct=mean_interval([_nanmean(run.distinct[-20:]) for run in runs]),
        planted=mean_interval([_nanmean(run.planted[-20:]) for run in runs]),
        tokens=mean_interval([float(run.tokens[-1]) for run in runs]),
        megabytes=mean_interval([float(run.bytes[-1]) / 1e6 for run in runs]),
        round_seconds=mean_interval([run.seconds / run.nodes for run in runs]),
        minutes=mean_interval([run.wall_s / 60 for run in runs]),
        trained_groups=(
            float(np.mean([_a_node(run, run.trained_nonzero) for run in runs])),
            float(np.mean([_a_node(run, run.external_groups) for run in runs])),
        ),
        judged=_judged(runs, against),
    )


def _judged(runs: Sequence[RunResult], against: Sequence[RunResult]) -> str:
    """The judge's result as a sentence; "" unless both arms have a judge."""
    swarm, silo = (
        {(run.seed, t): float(v) for run in some for t, v in enumerate(run.judged) if math.isfinite(v)}
        for some in (runs, against)
    )
    if not swarm.keys() & silo.keys():
        return ""
    first = better_from(swarm, silo)
    if first is None:
        return f"the judge finds no round from which on it is better (blocks of {BLOCK} rounds, adjusted p < .05)"
    return f"the judge finds it better from round {first} on (every block of {BLOCK} rounds, adjusted p < .05)"


def is_plain(arm: Arm) -> bool:
    """The arm differs from the paper's experiment in nothing but I and J (and the model, tasks and length)."""
    run = arm.run
    named = (run.sampling, run.algorithm, run.external_advantages, run.curriculum)
    rules = (*named, run.replay_groups, run.contrast)
    papers = ("uniform_nonzero", "grpo", "all", "uniform", 0, 0)
    return arm.conditions == ArmConditions() and rules == papers


def _reward(runs: Sequence[RunResult], against: Sequence[RunResult], name: str) -> MetricGain:
    """The total, and the gain of the mean per node and round: arms may have different numbers of them."""
    totals = mean_interval([float(getattr(run, name).sum()) for run in runs])
    mine, theirs = (
        {run.seed: float(getattr(run, name).sum() / run.present.sum()) for run in some} for some in (runs, against)
    )
    return MetricGain(totals, paired_gain(mine, theirs) if theirs else NOTHING)


def _last(runs: Sequence[RunResult]) -> dict[int, float]:
    return {run.seed: run.last.pass_at_1 for run in runs if run.last is not None}


def _compared(values: Mapping[int, float], against: Mapping[int, float]) -> MetricGain:
    return MetricGain(mean_interval(list(values.values())), paired_gain(values, against) if against else NOTHING)


def _equal_tokens(runs: Sequence[RunResult], against: Sequence[RunResult]) -> MetricGain:
    others = {run.seed: run for run in against}
    mine: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for run in runs:
        other = others.get(run.seed)
        if other is not None and run.last is not None and other.last is not None:
            tokens = min(run.last.tokens, other.last.tokens)
            mine[run.seed], theirs[run.seed] = at_same_tokens(run, other, tokens)
    return _compared(mine, theirs)


def _a_node(run: RunResult, means: Floats) -> float:
    """A node's total over all rounds, from means over the nodes present in each; in some rounds there may have been none."""
    return float(np.nansum(means * run.present) / run.nodes)


def _nanmean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


HEADS = (
    "arm",
    "compared with",
    "paper: total (vs 8/0)",
    "batch reward, total",
    "gain",
    "local reward, total",
    "gain",
    "held-out pass@1, at the end",
    "gain",
    "same tokens",
    "gain",
)
MORE_HEADS = (
    "arm",
    "seeds",
    "rounds",
    "base pass@1",
    "non-zero-advantage local groups",
    "external reward, mean",
    "drop from best",
    "distinct answers",
    "planted text",
    "tokens, millions",
    "groups trained on, a node (local non-zero + external)",
    "seconds in rounds, a node",
    "MB sent",
    "minutes",
)


def format_row(row: ComparisonRow, names: Mapping[str, str]) -> tuple[str, ...]:
    """A row of the main table; names: arm -> its displayed name."""
    paper = "–"
    if math.isfinite(row.paper):
        gain = math.floor(100 * (row.paper / PAPER_TOTAL[8, 0] - 1))  # the paper rounds down: +94 %
        paper = f"{row.paper:,.0f} ({gain:+d} %)"
    unfinished = "" if row.finished else " (unfinished)"
    return (
        row.arm.shown + unfinished,
        names.get(row.against, "–"),
        paper,
        format_number(row.batch.value),
        format_percent(row.batch.gain, 0, signed=True),
        format_number(row.local.value),
        format_percent(row.local.gain, 0, signed=True),
        format_percent(row.held_out.value, 2),
        format_percent(row.held_out.gain, 0, signed=True),
        format_percent(row.equal_tokens.value, 2),
        format_percent(row.equal_tokens.gain, 0, signed=True),
    )


def more_cells(row: ComparisonRow) -> tuple[str, ...]:
    """A row of the cost table; MORE_HEADS names its columns."""
    millions = ConfidenceInterval(row.tokens.value / 1e6, row.tokens.low / 1e6, row.tokens.high / 1e6)
    return (
        row.arm.shown,
        ", ".join(map(str, row.seeds)),
        str(row.rounds),
        format_percent(row.base, 2),
        format_percent(row.nonzero_advantage),
        format_percent(row.external),
        format_percent(row.forgetting, 2),
        format_percent(row.distinct),
        format_percent(row.planted, 2),
        f"{millions.value:.2f}",
        f"{row.trained_groups[0]:,.0f} + {row.trained_groups[1]:,.0f}",
        format_number(row.round_seconds),
        f"{row.megabytes.value:.1f}",
        f"{row.minutes.value:.1f}" if row.finished else "–",
    )


def describe_row(row: ComparisonRow, names: Mapping[str, str]) -> str:
    """A row in words; "" for an arm that is compared with nothing."""
    other = names.get(row.against)
    if other is None:
        return ""
    parts = [
        f"batch reward (the paper's metric) {_change(row.batch.gain)}",
        f"local reward {_change(row.local.gain)}",
        f"held-out pass@1 at the end {_change(row.held_out.gain)}",
        f"after the same number of generated tokens {_change(row.equal_tokens.gain)}",
    ]
    if row.judged:
        parts.append(row.judged)
    return f"{row.arm.shown} against {other}: {'; '.join(parts)}."


def _change(gain: ConfidenceInterval) -> str:
    if not math.isfinite(gain.value):
        return "not measured"
    if not math.isfinite(gain.low):
        return f"{100 * gain.value:+.0f} % (one seed, no interval)"
    if not gain.excludes_zero:
        return f"shows no measurable change ({format_percent(gain, 0, signed=True)})"
    return format_percent(gain, 0, signed=True)
