"""Arms whose nodes differ: what each type of node has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sapo_lab.conditions import node_type
from sapo_lab.report.joint import difference_cells
from sapo_lab.report.results import NodeResult, RunResult
from sapo_lab.report.statistics import format_percent, mean_interval, paired_gain
from sapo_lab.schema import Arm, Experiment


def node_type_columns() -> tuple[str, ...]:
    """The columns of `node_type_rows`."""
    return (
        "arm",
        "type of node",
        "nodes",
        "base pass@1",
        "held-out pass@1",
        "compared with",
        "gain",
        "tokens a node, millions",
    )


def node_type_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A row for every node type of an arm with several, and for every arm with such nodes that it is compared with."""
    result: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        mine = by_node_type(arm, found.get(arm.name, ()))
        if len(mine) < 2:
            continue
        others = {name: by_node_type(experiment.arm(name), found.get(name, ())) for name in arm.against}
        for label, nodes in mine.items():
            passed = _over_seeds(nodes, "pass_at_1")
            beside = [name for name in others if label in others[name]]
            for name in beside or [""]:
                gain = paired_gain(passed, _over_seeds(others[name][label], "pass_at_1")) if name else None
                result.append(
                    (
                        arm.shown,
                        label,
                        str(len(next(iter(nodes.values())))),
                        format_percent(mean_interval(list(_over_seeds(nodes, "base").values())), 2),
                        format_percent(mean_interval(list(passed.values())), 2),
                        experiment.arm(name).shown if name else "–",
                        format_percent(gain, 0, signed=True) if gain else "–",
                        f"{np.mean(list(_over_seeds(nodes, 'tokens').values())) / 1e6:.2f}",
                    )
                )
    return result


GREEDY_HEADS = (
    "arm",
    "type of node",
    "compared with",
    "seeds",
    "held-out pass@1 at temperature 0",
    "difference in points, 95 % over tasks, seeds and questions",
)


def greedy_rows(experiment: Experiment, found: Mapping[str, Sequence[RunResult]]) -> list[tuple[str, ...]]:
    """A row for every node type of an arm and every arm with such nodes that it is compared with, over the seeds that both
    have; only runs in which each type's verdicts were saved."""
    saved = {name: {run.seed: run.greedy_by_type for run in runs if run.greedy_by_type} for name, runs in found.items()}
    rows: list[tuple[str, ...]] = []
    for arm in experiment.arms:
        for other in arm.against:
            mine, theirs = saved.get(arm.name, {}), saved.get(other, {})
            seeds = sorted(mine.keys() & theirs.keys())
            labels = [label for label in (mine[seeds[0]] if seeds else ()) if label in theirs[seeds[0]]]
            for label in labels:
                sides = [{seed: some[seed][label] for seed in seeds} for some in (mine, theirs)]
                rows.append((arm.shown, label, experiment.arm(other).shown, *difference_cells(*sides)))
    return rows


def by_node_type(arm: Arm, runs: Sequence[RunResult]) -> dict[str, dict[int, list[NodeResult]]]:
    """Node type -> seed -> its nodes at the end of the run; for finished runs, empty if all nodes are alike."""
    nodes_by_type: dict[str, dict[int, list[NodeResult]]] = {}
    for run in runs:
        for index, node in enumerate(run.at_end):
            if label := node_type(arm, index):
                nodes_by_type.setdefault(label, {}).setdefault(run.seed, []).append(node)
    return nodes_by_type


def _over_seeds(nodes: Mapping[int, Sequence[NodeResult]], name: str) -> dict[int, float]:
    """Seed -> mean over the nodes."""
    return {seed: float(np.mean([getattr(node, name) for node in some])) for seed, some in nodes.items()}
