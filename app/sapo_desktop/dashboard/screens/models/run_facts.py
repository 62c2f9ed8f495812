"""What the Models & runs screen tells of a run on disk: read in a worker thread, drawn as plain text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import age, bar, fit, hang, memory, plain
from sapo_desktop.services.models.runs import Run
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, RunStarted
from sapo_swarm.node.storage.journal import JournalError, read_only

SHOWN_EVALUATIONS = 12


@dataclass(frozen=True)
class Checkpoint:
    """size in bytes; changed: Unix time."""

    name: str
    size: int
    changed: float


@dataclass(frozen=True)
class RunFacts:
    """problem: why the journal could not be read, "" when it could. computed_by: see RunStarted, of the last start."""

    run: Run
    checkpoints: tuple[Checkpoint, ...]
    evaluations: tuple[Evaluated, ...]
    problem: str = ""
    computed_by: str = ""


def read_facts(run: Run) -> RunFacts:
    """Checkpoints and evaluations of a run. Never raises: what cannot be read is told in `problem`."""
    checkpoints = []
    for folder in sorted((run.folder / "checkpoints").glob("round-*")):
        try:
            checkpoints.append(_checkpoint(folder))
        except OSError:  # taken away by the retention while we looked
            continue
    try:
        events = read_only(run.folder / "journal.db", kinds=("evaluation", "run_started"))
    except JournalError as error:
        return RunFacts(run, tuple(checkpoints), (), str(error))
    evaluations = tuple(e for e in events if isinstance(e, Evaluated))
    started = [f"{e.computed_by}, {e.precision}" for e in events if isinstance(e, RunStarted) and e.computed_by]
    return RunFacts(run, tuple(checkpoints), evaluations, computed_by=started[-1] if started else "")


def _checkpoint(folder: Path) -> Checkpoint:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Checkpoint(folder.name, size, folder.stat().st_mtime)


def run_line(run: Run, now: float, width: int) -> Content:
    """One run in the list: id, rounds, algorithm, age."""
    planned = f" of {run.config.rounds}" if run.config.rounds else ""
    rounds = f"{run.rounds_done:,}{planned} rounds"
    return Content.assemble(
        fit(plain(run.run_id, 60), max(min(width - 43, 40), 12)),
        (f"{rounds:>20}", "bold"),
        (f"  {fit(plain(run.config.algorithm, 12), 8)} {age(now - run.changed):>7} ago", "$muted"),
    )


def facts_text(facts: RunFacts, now: float, width: int, glyphs: Glyphs) -> Content:
    """Settings, held-out measurements, checkpoints, and the commands that go on from there."""
    config = facts.run.config
    rows = [
        _pair("model", f"{config.model} · engine {config.trainer} · method {config.method}", width),
        *([_pair("computed by", plain(facts.computed_by, 120), width)] if facts.computed_by else []),
        _pair("tasks", f"{', '.join(config.tasks)} ({config.preset})", width),
        _pair("update", _update(config), width),
        Content(""),
        Content.styled("Held-out pass@1", "bold"),
        *_evaluation_rows(facts, width, glyphs),
        Content(""),
        Content.styled(f"Checkpoints ({len(facts.checkpoints)})", "bold"),
        *[_checkpoint_row(checkpoint, now) for checkpoint in reversed(facts.checkpoints)],
        Content(""),
        *_commands(facts.run.run_id, width),
    ]
    return Content("\n").join(rows)


def _pair(label: str, value: str, width: int) -> Content:
    return Content.assemble((f"{label:<8}", "$muted"), hang(plain(value, 600), width, 8))


def _update(config: RunConfig) -> str:
    groups = f"{config.local_groups or 'automatic number of'} own"
    if config.external_groups:
        right = ", of these what was right" if config.external_advantages == "positive" else ""
        groups += f" and {config.external_groups} external{right}"
    return f"{config.algorithm} · groups of {config.group_size}: {groups}"


def _evaluation_rows(facts: RunFacts, width: int, glyphs: Glyphs) -> list[Content]:
    if facts.problem:
        return [Content.styled(plain(facts.problem), "$warning")]
    if not facts.evaluations:
        return [Content.styled("none yet", "$muted")]
    chosen = (
        facts.evaluations
        if len(facts.evaluations) <= SHOWN_EVALUATIONS
        else (
            facts.evaluations[0],
            *facts.evaluations[-SHOWN_EVALUATIONS + 1 :],
        )
    )
    top = max(max(event.high for event in chosen), 0.05)
    room = max(min(width - 62, 30), 0)
    return [_evaluation_row(event, top, room, glyphs) for event in chosen]


def _evaluation_row(event: Evaluated, top: float, room: int, glyphs: Glyphs) -> Content:
    change = "base"
    if event.delta is not None and event.delta_low is not None and event.delta_high is not None:
        still = event.delta_low <= 0 <= event.delta_high
        change = "no measurable change" if still else f"{100 * event.delta:+.1f} points"
    return Content.assemble(
        (f"round {event.round:>5}  ", "$muted"),
        (f"{100 * event.pass_at_1:5.1f} %  ", "bold"),
        bar(event.pass_at_1 / top, room, glyphs, "$chart-own") if room >= 8 else "",
        (f"  {change:<21} {event.items} items, T={event.temperature:g}", "$muted"),
    )


def _checkpoint_row(checkpoint: Checkpoint, now: float) -> Content:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(checkpoint.changed))
    return Content.assemble(f"{checkpoint.name}  ", (f"{memory(checkpoint.size):>9}  {when}", "$muted"))


def _commands(run_id: str, width: int) -> list[Content]:
    """To be copied: each on one line, under what it does where both do not fit."""
    rows = (
        ("compare with the base model", f"sapo-desktop eval --run {run_id}"),
        ("talk to both", f"sapo-desktop chat --run {run_id}"),
        ("write a Hugging Face folder", f"sapo-desktop export --run {run_id}"),
    )
    longest = max(len(command) for _, command in rows)
    gap = " " * 2 if longest + 29 <= width else "\n  "
    return [
        Content.assemble((f"{label:<27}{gap}", "$muted"), (plain(command, 200), "$accent")) for label, command in rows
    ]
