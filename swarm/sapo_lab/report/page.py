"""The report on an experiment, from its journals alone: one HTML page, a Markdown page, PNG figures."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from sapo_lab.report import by_task, gain_curve, joint, node_types
from sapo_lab.report.results import comparable, load_all
from sapo_lab.report.saved_runs import judged, save_runs, with_saved_runs
from sapo_lab.report.table import HEADS, MORE_HEADS, Row, cells, more_cells, rows, sentence
from sapo_lab.schema import BadExperiment, Experiment

NOTE = (
    "Means over seeds with 95 % intervals (Student's t; none with one seed). Totals are sums over nodes "
    "and rounds. Gains are relative, paired by seed; those of rewards are of the mean a node and round. Batch "
    "reward counts external groups, which were filtered for success before they were counted; local reward counts what "
    "the nodes themselves generated, unfiltered; held-out pass@1 counts fixed questions that no training seed reaches."
)
GAIN_CURVE_NOTE = (
    "The gain curve: held-out pass@1 of the arm and of the one it is compared with when both had generated as many tokens, and "
    "the relative gain, paired by seed. The share is of all tokens that the arm compared with generated; where nothing was "
    "measured, the straight line between two evaluations."
)

BY_TASK_NOTE = (
    "By task: held-out pass@1 at the end in percent, of the arm and of the one it is compared with, means over seeds; the "
    "gain over all tasks, and the gain without the task that gained most, which says how much of it is one task's."
)
PERMUTATION_NOTE = (
    "Answer-permutation check: held-out pass@1 at the end in percent, and what it would be if each question got the answer "
    "that the same node gave to another question of the task, over the seeds where it was measured. What remains is an "
    "answer-only shortcut: it does not come from reading the question. pass@1 less that, and the relative gain in it, "
    "paired by seed, are the last two columns."
)
JOINT_NOTE = (
    "Seeds and questions together: the gain in held-out pass@1 at the end, with a bootstrap interval that resamples training "
    "seeds and held-out questions (two-way, 10,000 draws), over the seeds that both arms have, and corrected (Bonferroni) for "
    "each arm's comparison with the first arm that it names. Costs beside it, of the arm and of the one compared with."
)
NODE_TYPES_NOTE = (
    "Nodes that differ: what each type has learnt at the end, each node on the held-out questions that it answered (its "
    "untrained model on the same ones), and the relative gain over nodes of that type in the arm compared with."
)


@dataclass(frozen=True, slots=True)
class _Contents:
    """What both pages show. gain_curve: lines of gain_curve.py; by_task, permuted: heads and lines of by_task.py;
    joint: lines of joint.py; node_types: lines of node_types.py. figures: caption and file. command: runs the experiment."""

    experiment: Experiment
    table: Sequence[Row]
    gain_curve: Sequence[Sequence[str]]
    by_task: Sequence[Sequence[str]]
    permuted: Sequence[Sequence[str]]
    joint: Sequence[Sequence[str]]
    node_types: Sequence[Sequence[str]]
    figures: Sequence[tuple[str, Path]]
    command: str
    versions: str
    rule: str

    @property
    def sentences(self) -> list[str]:
        names = _names(self.experiment)
        return [text for row in self.table if (text := sentence(row, names))]


def write(experiment: Experiment, out: Path, to: Path, command: str) -> list[Path]:
    """The files written. Runs that have finished are saved beside the report, and those saved there before are in it
    (saved_runs.py).

    Raises BadExperiment without runs, ModuleNotFoundError without matplotlib, OSError.
    """
    from sapo_lab.report.figures import draw

    everything = with_saved_runs(experiment, load_all(experiment, out), to)
    if not everything:
        raise BadExperiment(f"There is no run of {experiment.name} in {out}. Start one: sapo-desktop lab run.")
    found = comparable(everything)
    table = rows(experiment, found)
    figures = draw(experiment, found, table, to)
    first = next(iter(found.values()))[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    contents = _Contents(
        experiment,
        table,
        gain_curve.lines(experiment, found),
        [by_task.heads(by_task.tasks_of(found)), *by_task.lines(experiment, found)],
        [by_task.permuted_heads(by_task.tasks_of(found)), *by_task.permuted_lines(experiment, found)],
        joint.lines(experiment, found),
        node_types.lines(experiment, found),
        figures,
        command,
        versions,
        judged(found),
    )
    pages = {"report.html": _html(contents), "report.md": _markdown(contents)}
    for name, text in pages.items():
        (to / name).write_text(text, encoding="utf-8")
    return [*(to / name for name in pages), *(path for _, path in figures), *save_runs(everything, out, to)]


def setting(experiment: Experiment, table: Sequence[Row]) -> str:
    """The setting in a sentence."""
    run = table[0].arm.run
    unfinished = list(dict.fromkeys(row.arm.shown for row in table if not row.finished))
    missing = [arm.shown for arm in experiment.arms if arm.name not in {row.arm.name for row in table}]
    text = (
        f"{_count(experiment.nodes)}, {max(row.rounds for row in table)} rounds, groups of {run.group_size}, model "
        f"{run.model}, tasks {', '.join(run.tasks)} ({run.preset}), {run.algorithm}, at most {run.max_new_tokens} tokens "
        f"a completion, {experiment.final_items} held-out questions a task at the end, each answered by "
        f"{_count(min(experiment.final_answers, experiment.nodes))}."
    )
    if unfinished:
        text += f" Not finished: {', '.join(unfinished)}."
    if missing:
        text += f" Not run: {', '.join(missing)}."
    return text


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def commands(table: Sequence[Row], command: str) -> list[str]:
    """The command that runs an arm again, for every arm of the table."""
    lines = [f"{command} --only {row.arm.name} --seeds {','.join(map(str, row.seeds))} --fresh" for row in table]
    return list(dict.fromkeys(lines))


def _names(experiment: Experiment) -> dict[str, str]:
    return {arm.name: arm.shown for arm in experiment.arms}


def _html(contents: _Contents) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files("sapo_lab.report").joinpath("report.html.j2").read_text("utf-8"))
    names = _names(contents.experiment)
    return template.render(
        experiment=contents.experiment,
        setting=f"{setting(contents.experiment, contents.table)} {contents.rule}".strip(),
        note=NOTE,
        sentences=contents.sentences,
        heads=HEADS,
        table=[cells(row, names) for row in contents.table],
        gain_curve_note=GAIN_CURVE_NOTE,
        gain_curve_heads=gain_curve.heads(),
        gain_curve=contents.gain_curve,
        tasks_note=BY_TASK_NOTE,
        tasks_heads=contents.by_task[0],
        tasks=contents.by_task[1:],
        permuted_note=PERMUTATION_NOTE,
        permuted_heads=contents.permuted[0],
        permuted=contents.permuted[1:],
        joint_note=JOINT_NOTE,
        joint_heads=joint.heads(contents.experiment),
        joint=contents.joint,
        node_types_note=NODE_TYPES_NOTE,
        node_types_heads=node_types.heads(),
        node_types=contents.node_types,
        more_heads=MORE_HEADS,
        more=list(dict.fromkeys(more_cells(row) for row in contents.table)),
        figures=[(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in contents.figures],
        commands=commands(contents.table, contents.command),
        versions=contents.versions,
    )


def _markdown(contents: _Contents) -> str:
    names = _names(contents.experiment)
    said = [_wrapped(f"- {text}", "  ") for text in contents.sentences]
    parts = [
        f"# {contents.experiment.title or contents.experiment.name}",
        contents.experiment.question,
        _wrapped(f"{setting(contents.experiment, contents.table)} {contents.rule}"),
        "\n".join(said) or "No arm is compared with another.",
        _wrapped(NOTE),
        _grid(HEADS, [cells(row, names) for row in contents.table]),
        _wrapped(GAIN_CURVE_NOTE) if contents.gain_curve else "",
        _grid(gain_curve.heads(), contents.gain_curve) if contents.gain_curve else "",
        _wrapped(BY_TASK_NOTE) if contents.by_task[1:] else "",
        _grid(contents.by_task[0], contents.by_task[1:]) if contents.by_task[1:] else "",
        _wrapped(PERMUTATION_NOTE) if contents.permuted[1:] else "",
        _grid(contents.permuted[0], contents.permuted[1:]) if contents.permuted[1:] else "",
        _wrapped(JOINT_NOTE) if contents.joint else "",
        _grid(joint.heads(contents.experiment), contents.joint) if contents.joint else "",
        _wrapped(NODE_TYPES_NOTE) if contents.node_types else "",
        _grid(node_types.heads(), contents.node_types) if contents.node_types else "",
        _grid(MORE_HEADS, list(dict.fromkeys(more_cells(row) for row in contents.table))),
        *(f"![{path.stem}]({path.name})\n\n{_wrapped(caption)}" for caption, path in contents.figures),
        "Run a row again:\n\n" + "\n".join(f"    {line}" for line in commands(contents.table, contents.command)),
        _wrapped(contents.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])
