"""The gain curve: held-out pass@1 of an arm against another's when both had generated as many tokens.

The end of a run alone says little about an arm that learns fast and then forgets, or that stops with fewer tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sapo_lab.report.results import CLOSE, RunResult, at_same_tokens
from sapo_lab.report.statistics import format_percent, mean_interval, paired_gain
from sapo_lab.schema import Experiment
from sapo_swarm.evaluation import ConfidenceInterval

SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Of the tokens that the arm compared with generated in all."""


def gain_curve_columns() -> tuple[str, ...]:
    """The columns of `lines`."""
    return ("arm", "compared with", *(f"after {100 * share:g} % of its tokens" for share in SHARES))


def gain_curve_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A line for every arm and every arm it is compared with: held-out pass@1 of both and the relative gain."""
    names = {arm.name: arm.shown for arm in experiment.arms}
    result: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        for other in arm.against:
            cells = [_cell(found.get(arm.name, ()), found.get(other, ()), share) for share in SHARES]
            if any(cell != "–" for cell in cells):
                result.append((arm.shown, names[other], *cells))
    return result


def gain_at(
    runs: Sequence[RunResult], against: Sequence[RunResult], share: float
) -> tuple[ConfidenceInterval, ConfidenceInterval, ConfidenceInterval]:
    """pass@1 of both arms, and the relative gain paired by seed, when so large a share of the other's tokens was generated;
    NaN where either was not measured so far."""
    others = {run.seed: run for run in against if run.last is not None}
    mine: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for run in runs:
        other = others.get(run.seed)
        if other is None or other.last is None or run.last is None:
            continue
        tokens = share * other.last.tokens
        if run.last.tokens >= CLOSE * tokens:
            tokens = min(tokens, run.last.tokens)
            mine[run.seed], theirs[run.seed] = at_same_tokens(run, other, tokens)
    return mean_interval(list(mine.values())), mean_interval(list(theirs.values())), paired_gain(mine, theirs)


def _cell(runs: Sequence[RunResult], against: Sequence[RunResult], share: float) -> str:
    mine, theirs, gain = gain_at(runs, against, share)
    if math.isnan(mine.value) or math.isnan(theirs.value):
        return "–"
    return f"{100 * mine.value:.2f} : {100 * theirs.value:.2f} %, {format_percent(gain, 0, signed=True)}"
