"""The report on an experiment, from its journals alone: one HTML page, a Markdown page, PNG figures."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from sapo_lab.report import by_task, gain_curve, joint, node_types
from sapo_lab.report.results import RunResult, load_all, select_comparable_runs
from sapo_lab.report.saved_runs import legacy_scoring_note, save_runs, with_saved_runs
from sapo_lab.report.table import (
    HEADS,
    MORE_HEADS,
    ComparisonRow,
    comparison_rows,
    describe_row,
    format_row,
    more_cells,
)
from sapo_lab.running.held_out import check_protected
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
    "Seeds and questions together: the gain in held-out pass@1 at the end, at temperature 0 (as a chat answers) and 1 (as "
    "training samples), with a bootstrap interval that resamples training seeds and held-out questions (two-way, 10,000 draws), "
    "over the seeds that both arms have, and corrected (Bonferroni) for each arm's comparison with the first arm that it names. "
    "The difference in points resamples the tasks too: what is claimed for tasks in general rests on it. Costs beside it, of the "
    "arm and of the one compared with; processor seconds include scoring and the checks of other nodes' groups."
)
SPREAD_NOTE = (
    "More questions, or the same ones more surely: the share of right samples, the share of questions with a right one among k "
    "(unbiased), both at temperature 1, and the policy's entropy in nats a token."
)
NODE_TYPES_NOTE = (
    "Nodes that differ: what each type has learnt at the end, each node on the held-out questions that it answered (its "
    "untrained model on the same ones), and the relative gain over nodes of that type in the arm compared with."
)
GREEDY_TYPES_NOTE = (
    "Each type at temperature 0 against nodes of that type in the arm compared with, in runs that saved the answers of each "
    "type: earlier ones hold only the mean over all nodes."
)


@dataclass(frozen=True, slots=True)
class _Section:
    """A table of the report. title: "" if it continues the section before it."""

    title: str
    note: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Page:
    """What both pages show. figures: caption and file."""

    title: str
    question: str
    setting: str
    sentences: Sequence[str]
    sections: Sequence[_Section]
    figures: Sequence[tuple[str, Path]]
    commands: Sequence[str]
    versions: str


def write_report(experiment: Experiment, out: Path, to: Path, command: str) -> list[Path]:
    """Write the report; returns its files. Finished runs are saved beside the report, and those saved there earlier are
    included (saved_runs.py).

    Raises BadExperiment without runs, ModuleNotFoundError without matplotlib, OSError.
    """
    from sapo_lab.report.figures import draw_figures

    everything = with_saved_runs(experiment, load_all(experiment, out), to)
    if not everything:
        raise BadExperiment(f"There is no run of {experiment.name} in {out}. Start one: python -m sapo_lab run.")
    found = select_comparable_runs(everything)
    table = comparison_rows(experiment, found)
    figures = draw_figures(experiment, found, table, to)
    first = next(iter(found.values()))[0]
    names = {arm.name: arm.shown for arm in experiment.arms}
    page = _Page(
        title=experiment.title or experiment.name,
        question=experiment.question,
        setting=f"{describe_setup(experiment, table)} {legacy_scoring_note(found)}".strip(),
        sentences=[text for row in table if (text := describe_row(row, names))],
        sections=_sections(experiment, found, table, names),
        figures=figures,
        commands=rerun_commands(table, command),
        versions=", ".join(f"{name} {version}" for name, version in first.versions.items()),
    )
    pages = {"report.html": _html(page), "report.md": _markdown(page)}
    for name, text in pages.items():
        (to / name).write_text(text, encoding="utf-8")
    return [*(to / name for name in pages), *(path for _, path in figures), *save_runs(everything, out, to)]


def describe_setup(experiment: Experiment, table: Sequence[ComparisonRow]) -> str:
    """The setup in a sentence."""
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
    try:
        for row in table:
            check_protected(experiment, row.arm)
    except BadExperiment as unprotected:
        text += f" WITHDRAWN, the figures prove nothing. {unprotected}"
    return text


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def rerun_commands(table: Sequence[ComparisonRow], command: str) -> list[str]:
    """The command that repeats an arm, for every arm of the table."""
    lines = [f"{command} --only {row.arm.name} --seeds {','.join(map(str, row.seeds))} --fresh" for row in table]
    return list(dict.fromkeys(lines))


def _sections(
    experiment: Experiment,
    found: Mapping[str, Sequence[RunResult]],
    table: Sequence[ComparisonRow],
    names: Mapping[str, str],
) -> list[_Section]:
    """The sections that have rows."""
    tasks = by_task.tasks_of(found)
    more = list(dict.fromkeys(more_cells(row) for row in table))
    sections = [
        _Section("The endpoint", JOINT_NOTE, joint.joint_columns(experiment), joint.joint_rows(experiment, found)),
        _Section("", SPREAD_NOTE, joint.SPREAD_HEADS, joint.spread_rows(found, names)),
        _Section("By seed", NOTE, HEADS, [format_row(row, names) for row in table]),
        _Section(
            "For the same tokens",
            GAIN_CURVE_NOTE,
            gain_curve.gain_curve_columns(),
            gain_curve.gain_curve_rows(experiment, found),
        ),
        _Section("By task", BY_TASK_NOTE, by_task.task_gain_columns(tasks), by_task.task_gain_rows(experiment, found)),
        _Section("", PERMUTATION_NOTE, by_task.permuted_heads(tasks), by_task.permuted_lines(experiment, found)),
        _Section(
            "Nodes that differ",
            NODE_TYPES_NOTE,
            node_types.node_type_columns(),
            node_types.node_type_rows(experiment, found),
        ),
        _Section("", GREEDY_TYPES_NOTE, node_types.GREEDY_HEADS, node_types.greedy_rows(experiment, found)),
        _Section("What it cost, and how it went", "", MORE_HEADS, more),
    ]
    return [section for section in sections if section.lines]


def _html(page: _Page) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files("sapo_lab.report").joinpath("report.html.j2").read_text("utf-8"))
    pictures = [(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in page.figures]
    return template.render(page=page, pictures=pictures)


def _markdown(page: _Page) -> str:
    parts = [
        f"# {page.title}",
        page.question,
        _wrapped(page.setting),
        "\n".join(_wrapped(f"- {text}", "  ") for text in page.sentences) or "No arm is compared with another.",
        *(part for section in page.sections for part in (_wrapped(section.note), _grid(section.heads, section.lines))),
        *(f"![{path.stem}]({path.name})\n\n{_wrapped(caption)}" for caption, path in page.figures),
        "Run a row again:\n\n" + "\n".join(f"    {line}" for line in page.commands),
        _wrapped(page.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])
