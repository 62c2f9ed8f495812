"""PNG figures of an experiment. Imports matplotlib (the extra `lab`)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sapo_lab.report.results import Floats, RunResult
from sapo_lab.report.statistics import nonzero_advantage_share
from sapo_lab.report.table import ComparisonRow
from sapo_lab.schema import Experiment

Found = Mapping[str, Sequence[RunResult]]
_DPI = 110
_LEGEND = 44
"""Characters per line in a legend."""
_COLOURS = (
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#3ca951",
    "#a463f2",
    "#97bbf5",
    "#9c6b4e",
    "#9498a0",
    "#6cc5b0",
    "#ff8ab7",
)


def draw_figures(
    experiment: Experiment, found: Found, rows: Sequence[ComparisonRow], folder: Path
) -> list[tuple[str, Path]]:
    """Every figure for which there are data, as (caption, file)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {arm.name: textwrap.fill(arm.shown, _LEGEND) for arm in experiment.arms}
    settings = _settings(experiment, found)
    plots: tuple[tuple[str, str, Callable[[], Figure | None]], ...] = (
        (
            "figure-1",
            "After Figure 1 of the paper: reward of the whole batch, summed over nodes, each round. Faint: mean over "
            "seeds. Bold: moving average.",
            lambda: _panels(settings, names),
        ),
        (
            "figure-2",
            "After Figure 2 of the paper: moving averages. Left: the whole batch, external groups included, which the "
            "paper seems to plot. Right, same scale: the nodes' local groups only. Bands: the range over seeds.",
            lambda: _smoothed(settings, names),
        ),
        (
            "held-out",
            "Held-out pass@1, mean over nodes, by what it cost: rounds, generated tokens, seconds in rounds. A line a seed. "
            "Points on the way are placed as if all rounds of a run took equally long.",
            lambda: _held_out(settings, names),
        ),
        (
            "compute",
            "Held-out pass@1 at the end, mean over nodes, by the processor seconds of a node in its rounds. Large: mean over "
            "seeds; small: each seed. The line is the untrained model.",
            lambda: _compute(found, names),
        ),
        (
            "regimes",
            "Left: non-zero-advantage local groups against the base success rate p. The line is 1-(1-p)^G-p^G; "
            "crosses are its mean over the tasks. Right: gain of "
            "each arm over the one it is compared with, against p.",
            lambda: _regimes(experiment, found, rows),
        ),
        (
            "external-groups",
            "External groups in a batch (J as it came out), mean over nodes and seeds.",
            lambda: _external(experiment, found, names),
        ),
        (
            "planted",
            "Share of the honest nodes' completions with the hostile nodes' sentence.",
            lambda: _over_rounds(found, names, "planted", "completions with the planted sentence, %"),
        ),
        (
            "judge",
            "The judge's question of each round: share of nodes that answer it correctly, moving average over rounds.",
            lambda: _over_rounds(found, names, "judged", "correct answers to the judge, %"),
        ),
    )
    written: list[tuple[str, Path]] = []
    for name, caption, plot in plots:
        figure = plot()
        if figure is not None:
            path = folder / f"{name}.png"
            FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})
            written.append((caption, path))
    return written


def moving_average(values: Floats, window: int) -> Floats:
    """Trailing mean over up to `window` values, ignoring NaN: (rounds,) -> (rounds,)."""
    finite = np.isfinite(values)
    sums, counts = np.cumsum(np.where(finite, values, 0.0)), np.cumsum(finite)
    sums[window:] = sums[window:] - sums[:-window]
    counts[window:] = counts[window:] - counts[:-window]
    result: Floats = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return result


def _stack(runs: Sequence[RunResult], name: str) -> Floats:
    """(seeds, rounds), truncated to the shortest run."""
    shortest = min(run.rounds for run in runs)
    return np.stack([getattr(run, name)[:shortest] for run in runs])


def _window(found: Found) -> int:
    return max(1, min(100, max(run.rounds for runs in found.values() for run in runs) // 10))


def _figure(columns: int, rows: int = 1, width: float = 5.2, height: float = 3.6) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width * columns, height * rows), dpi=_DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]


def _settings(experiment: Experiment, found: Found) -> list[Found]:
    """The arms that were run, grouped by tasks and preset: only rates within a group share an axis."""
    by_setting: dict[tuple[str, tuple[str, ...]], dict[str, Sequence[RunResult]]] = {}
    for name, runs in found.items():
        arm = experiment.arm(name)
        by_setting.setdefault((arm.run.preset, arm.run.tasks), {})[name] = runs
    return list(by_setting.values())


def _panels(settings: Sequence[Found], names: Mapping[str, str]) -> Figure:
    arms = [(found, arm) for found in settings for arm in found]
    columns = min(4, len(arms))
    figure, axes = _figure(columns, -(-len(arms) // columns), 3.4, 2.8)
    for position, (found, arm) in enumerate(arms):
        top = max(float(_stack(runs, "batch").mean(axis=0).max()) for runs in found.values()) or 1.0
        mean = _stack(found[arm], "batch").mean(axis=0)
        axes[position].plot(mean, color=_colour(position), alpha=0.3, linewidth=0.8)
        axes[position].plot(moving_average(mean, _window(found)), color=_colour(position), linewidth=2)
        axes[position].set(title=names[arm], ylim=(0, 1.05 * top), xlabel="round", ylabel="reward, sum over nodes")
    for axis in axes[len(arms) :]:
        axis.set_visible(False)
    return figure


def _smoothed(settings: Sequence[Found], names: Mapping[str, str]) -> Figure:
    figure, axes = _figure(2, len(settings))
    for found, left, right in zip(settings, axes[::2], axes[1::2], strict=True):
        window = _window(found)
        for axis, name, title in ((left, "batch", "whole batch"), (right, "local", "local groups")):
            for position, (arm, runs) in enumerate(found.items()):
                curves = np.stack([moving_average(row, window) for row in _stack(runs, name)])
                axis.plot(curves.mean(axis=0), color=_colour(position), label=names[arm])
                axis.fill_between(
                    range(curves.shape[1]), curves.min(axis=0), curves.max(axis=0), color=_colour(position), alpha=0.15
                )
            axis.set(title=title, xlabel="round", ylabel=f"reward, sum over nodes, average of {window}")
        right.sharey(left)
        left.set_ylim(bottom=0)
        left.legend(fontsize=8)
    return figure


def _held_out(settings: Sequence[Found], names: Mapping[str, str]) -> Figure | None:
    if not any(run.held_out for found in settings for runs in found.values() for run in runs):
        return None
    figure, axes = _figure(3, len(settings))
    for found, left, middle, right in zip(settings, axes[::3], axes[1::3], axes[2::3], strict=True):
        for position, (arm, runs) in enumerate(found.items()):
            for number, run in enumerate(runs):
                label = names[arm] if number == 0 else None
                rates = [100 * h.pass_at_1 for h in run.held_out]
                style: dict[str, Any] = {"color": _colour(position), "marker": ".", "alpha": 0.7, "linewidth": 1.2}
                left.plot([h.round for h in run.held_out], rates, label=label, **style)
                middle.plot([h.tokens / run.nodes / 1e3 for h in run.held_out], rates, **style)
                seconds = run.seconds / run.nodes / max(run.rounds, 1)
                right.plot([h.round * seconds for h in run.held_out], rates, **style)
        left.set(xlabel="round", ylabel="held-out pass@1, %")
        middle.set(xlabel="tokens generated by a node, thousands")
        right.set(xlabel="seconds in rounds, a node (wall clock, one thread)")
        left.legend(fontsize=8)
    return figure


def _compute(found: Found, names: Mapping[str, str]) -> Figure | None:
    """Only if several arms recorded their processor seconds."""
    points = {
        arm: [(run.cpu_s / run.nodes, 100 * run.last.pass_at_1) for run in runs if run.last and np.isfinite(run.cpu_s)]
        for arm, runs in found.items()
    }
    if sum(bool(some) for some in points.values()) < 2:
        return None
    figure, (axes,) = _figure(1)
    for position, (arm, some) in enumerate(points.items()):
        if some:
            xs, ys = zip(*some, strict=True)
            axes.plot(xs, ys, ".", markersize=4, alpha=0.5, color=_colour(position))
            axes.plot(np.mean(xs), np.mean(ys), "o", markersize=9, color=_colour(position), label=names[arm])
    base = [100 * run.base.pass_at_1 for runs in found.values() for run in runs if run.base]
    if base:
        axes.axhline(np.mean(base), color="#888888", linewidth=0.8, label="untrained")
    axes.set(xlim=(0, None), xlabel="processor seconds in rounds, a node", ylabel="held-out pass@1 at the end, %")
    axes.legend(fontsize=8)
    return figure


def _regimes(experiment: Experiment, found: Found, rows: Sequence[ComparisonRow]) -> Figure | None:
    """Only if the compared pairs start from different success rates."""
    compared = [row for row in rows if row.against in found and np.isfinite(row.base.value)]
    if len({round(row.base.value, 3) for row in compared}) < 2:
        return None
    figure, axes = _figure(2)
    size = experiment.arms[0].run.group_size
    axes[0].set(xscale="log", xlabel="base pass@1, %", ylabel="non-zero-advantage local groups, first 20 rounds, %")
    axes[1].set(xscale="log", yscale="symlog", xlabel="base pass@1, %", ylabel="gain, %")
    grid = np.geomspace(0.001, 0.6, 200)
    axes[0].plot(
        100 * grid,
        [100 * nonzero_advantage_share(float(p), size) for p in grid],
        color="#888888",
        label="predicted from p",
    )
    bases = [(run, run.base) for runs in found.values() for run in runs if run.base is not None]
    rates = [100 * base.pass_at_1 for _, base in bases]
    early = [100 * float(np.nanmean(run.nonzero_advantage[:20])) for run, _ in bases]
    by_task = [100 * np.mean([nonzero_advantage_share(p, size) for p in base.tasks.values()]) for _, base in bases]
    axes[0].plot(rates, early, ".", color=_colour(0), label="measured")
    axes[0].plot(rates, by_task, "x", color=_colour(1), label="predicted from each task's own p")
    gains = {
        "batch": [(row.base.value, row.batch.gain.value) for row in compared],
        "local": [(row.base.value, row.local.gain.value) for row in compared],
        "held-out": [(row.base.value, row.held_out.gain.value) for row in compared],
    }
    for position, (title, points) in enumerate(gains.items()):
        xs, ys = (100 * np.array(column) for column in zip(*sorted(points), strict=True))
        axes[1].plot(xs, ys, "o", color=_colour(position), label=title)
    axes[1].axhline(0, color="#888888", linewidth=0.8)
    axes[0].legend(fontsize=8)
    axes[1].legend(fontsize=8)
    return figure


def _external(experiment: Experiment, found: Found, names: Mapping[str, str]) -> Figure | None:
    """Only if there is an adaptive arm."""
    if not any(arm.conditions.adaptive for arm in experiment.arms if arm.name in found):
        return None
    figure, axes = _figure(1)
    for position, (arm, runs) in enumerate(found.items()):
        mean = _stack(runs, "external_groups").mean(axis=0)
        axes[0].plot(moving_average(mean, _window(found)), color=_colour(position), label=names[arm])
    axes[0].set(xlabel="round", ylabel="external groups in a batch")
    axes[0].legend(fontsize=8)
    return figure


def _over_rounds(found: Found, names: Mapping[str, str], name: str, label: str) -> Figure | None:
    """A share over rounds, mean over seeds; None if it is 0 or unknown everywhere."""
    shown = {arm: runs for arm, runs in found.items() if any(np.nansum(getattr(run, name)) > 0 for run in runs)}
    if not shown:
        return None
    figure, axes = _figure(1)
    for position, (arm, runs) in enumerate(shown.items()):
        curves = [moving_average(row, _window(found)) for row in _stack(runs, name)]
        axes[0].plot(100 * np.mean(curves, axis=0), color=_colour(position), label=names[arm])
    axes[0].set(xlabel="round", ylabel=label)
    axes[0].legend(fontsize=8)
    return figure
