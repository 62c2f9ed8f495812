"""A run's figures for other programs, as a table or JSON lines: one row per round (or block of rounds), one per held-out
result, one per swarm update.

Names are the same in both formats. Related figures share the part before the slash: `reward/local`, `reward/external` and
`reward/batch` are three figures, never one.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import msgspec

from sapo_desktop.errors import AppError
from sapo_desktop.streams import json_line
from sapo_swarm.events import (
    Evaluated,
    Event,
    GreedyScore,
    RoundFinished,
    RunStarted,
    SwarmUpdated,
    settled_evaluations,
)
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.whole_file import open_atomic

KINDS = ("run_started", "round", "evaluation", "swarm")
"""Kinds of events that contain figures."""
_OF_A_ROUND = {
    "reward_local": "reward/local",
    "reward_external": "reward/external",
    "reward_batch": "reward/batch",
    "local_groups": "groups/local",
    "external_groups": "groups/external",
    "external_wanted": "groups/external_wanted",
    "nonzero_groups": "groups/nonzero_advantage",
    "completions": "completions/all",
    "truncated": "completions/truncated",
    "well_formed": "completions/well_formed",
    "tokens_generated": "tokens/generated",
    "tokens_trained": "tokens/trained",
    "bytes_sent": "bytes/sent",
    "bytes_received": "bytes/received",
    "loss": "update/loss",
    "grad_norm": "update/grad_norm",
    "entropy": "update/entropy",
    "clip_fraction": "update/clip_fraction",
    "ratio_max": "update/ratio_max",
    "logprob_local": "logprob/local",
    "logprob_external": "logprob/external",
}
_BY_NAME = {"task_rewards": "task_reward", "taught": "taught", "seconds": "seconds", "figures": "further"}
_HELD_OUT = ("pass_at_1", "low", "high", "delta", "delta_low", "delta_high", "items")
_SWARM = ("share", "uptake", "external_share", "nodes", "made", "accepted")


class FigureRow(msgspec.Struct, frozen=True):
    """round: rounds done by then, the last of the `covers` rounds in this row. time: Unix seconds. questions: which held-out
    questions were asked, as the run names them. figures: finite numbers only."""

    kind: Literal["round", "held_out", "swarm"]
    round: int
    covers: int
    time: float
    questions: str
    figures: dict[str, float]


def figure_rows(events: Iterable[Event]) -> Iterator[FigureRow]:
    """The figures, in the order of the events. A round redone after a kill counts once, with its last result; so does a
    held-out result that was published again, once the base had answered."""
    history = list(events)
    final = {event.round: event for event in history if isinstance(event, RoundFinished)}
    settled = {id(event) for event in settled_evaluations(history)}
    done, questions = 0, ""
    for event in history:
        match event:
            case RunStarted():
                questions, done = event.held_out, event.round
            case RoundFinished() if final[event.round] is event:
                done = event.round + 1
                yield FigureRow("round", done, event.covers, event.time, "", _finite(_of_round(event)))
            case Evaluated() if id(event) in settled:
                yield FigureRow("held_out", event.round, 0, event.time, questions, _finite(_of_evaluation(event)))
            case SwarmUpdated():
                figures = {f"swarm/{name}": getattr(event, name) for name in _SWARM}
                yield FigureRow("swarm", done, 0, event.time, "", _finite(figures))


def _of_round(event: RoundFinished) -> Iterator[tuple[str, float | None]]:
    for field, name in _OF_A_ROUND.items():
        yield name, getattr(event, field)
    for field, family in _BY_NAME.items():
        yield from ((f"{family}/{name}", value) for name, value in getattr(event, field).items())
    for field in ("lowest", "highest"):  # of a block of rounds
        for name, value in getattr(event, field).items():
            yield f"{field}/{_OF_A_ROUND.get(name, name)}", value


def _of_evaluation(event: Evaluated) -> Iterator[tuple[str, float | None]]:
    """Results at different temperatures are different figures."""
    yield from _of_scores(f"held_out_t{event.temperature:g}", event)
    yield f"held_out_t{event.temperature:g}/seconds", event.seconds
    if event.greedy is not None:
        yield from _of_scores("held_out_t0", event.greedy)


def _of_scores(family: str, scores: Evaluated | GreedyScore) -> Iterator[tuple[str, float | None]]:
    for field in _HELD_OUT:
        yield f"{family}/{field}", getattr(scores, field)
    for score in scores.tasks:
        yield f"{family}_task/{score.task}", score.pass_at_1
        yield f"{family}_task_low/{score.task}", score.low
        yield f"{family}_task_high/{score.task}", score.high


def _finite(found: Iterable[tuple[str, float | None]] | Mapping[str, float]) -> dict[str, float]:
    pairs = found.items() if isinstance(found, Mapping) else found
    return {name: value for name, value in pairs if value is not None and math.isfinite(value)}


# The two formats.

FORMATS = {"csv": "one table with a column a figure", "jsonl": "one JSON object a line"}
"""Name -> what it is, for people."""
FIRST = ("kind", "round", "covers", "time", "questions")
"""The columns of every row, before its figures."""
_FORMULA = ("=", "+", "-", "@")
ReportProgress = Callable[[float, str], None]
"""Progress: a fraction in [0, 1] and a phrase."""


@dataclass(frozen=True)
class FigureJob:
    """The figures of the model `name`, and the file they go to. force: replace an existing one."""

    name: str
    figures: Sequence[FigureRow]
    target: Path
    force: bool
    progress: ReportProgress

    def flat_rows(self) -> Iterator[dict[str, object]]:
        """Each row and its figures on one level; reports progress."""
        for number, row in enumerate(self.figures):
            if number % 1000 == 0:
                self.progress(number / len(self.figures), f"figures of {self.name}")
            yield {**{name: getattr(row, name) for name in FIRST}, **row.figures}

    def taken(self, what: str) -> AppError:
        """The error for a target that already exists."""
        return AppError(f"{self.target} {what}. Name another place, or add --force to write in its place.")


def write_figures(format_: str, job: FigureJob) -> None:
    """Write the file; it is moved into place when complete. Raises AppError where something is in the way, OSError."""
    if not job.figures:
        raise AppError(f"{job.name} has no figures yet: it has not been trained.")
    if job.target.is_dir():
        raise job.taken("is a folder")
    if job.target.exists() and not job.force:
        raise job.taken("exists")
    job.target.parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(job.target) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        if format_ == "csv":
            _write_csv(job, text)
        else:
            text.writelines(json_line(row) + "\n" for row in job.flat_rows())
        text.detach()


def _write_csv(job: FigureJob, file: IO[str]) -> None:
    """One column per figure, in alphabetical order; an empty cell where a row lacks the figure."""
    columns = sorted({column for row in job.figures for column in row.figures})
    table = csv.DictWriter(file, names := (*FIRST, *columns), restval="")
    table.writerow({name: as_text(name) for name in names})
    table.writerows({name: as_text(value) for name, value in row.items()} for row in job.flat_rows())


def as_text(cell: object) -> object:
    """A cell that a spreadsheet does not evaluate: names of tasks and swarms come from others, and one that starts like a
    formula would be run as one."""
    if not isinstance(cell, str):
        return cell
    plain = safe_text(cell, len(cell), lines=False)
    return f"'{plain}" if plain.lstrip()[:1] in _FORMULA else plain
