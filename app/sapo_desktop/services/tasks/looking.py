"""Everything that is shown about a task before a model is trained on it: its answers, what it accepts, its examples."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sapo_backends.checkpoints.locate import BUNDLED
from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.tasks import review
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable
from sapo_swarm.tasks.catalogue import LIBRARY_PRESET, SOFT
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.import_rows import RowTable
from sapo_swarm.tasks.own.spec import ChoiceVerifier, ExactVerifier, NumberVerifier, RulesVerifier, Verifier
from sapo_swarm.types import Question

# What a catalogue task accepts besides its true answer, measured over 25 questions each.
#
# The list is printed by `tests/benchmarks/near_misses.py`, and `tests/unit/swarm/test_near_misses.py` checks it against
# the code.


def accepted_variants() -> dict[str, dict[str, int]]:
    """Task/preset -> how the true answer was changed -> percent of such texts that get full marks."""
    text = resources.files("sapo_assets").joinpath("accepted.json").read_text("utf-8")
    variants: dict[str, dict[str, int]] = json.loads(text)
    return variants


def describe_acceptance(task: str, preset: str) -> list[str]:
    """Which rule judges, and what it accepts."""
    rule = f"{task} ({preset}): {_rule(task, preset)}"
    kinds = accepted_variants()[f"{task}/{preset}"]
    if not kinds:
        return [rule, "Accepted beside the true answer: none of the changes that were tried."]
    shown = "; ".join(kind if percent == 100 else f"{kind} ({percent} %)" for kind, percent in kinds.items())
    return [rule, f"Accepted beside the true answer, of changes to it that were tried: {shown}."]


def _rule(task: str, preset: str) -> str:
    if task not in SOFT:
        return "judged by one rule in every preset."
    if preset == LIBRARY_PRESET:
        return "judged by reasoning_gym's own rule, which accepts more than right answers."
    return "judged exactly; --preset library shows what reasoning_gym's own rule accepts."


# The tasks' own answers: regenerated here by the sandboxed scorer worker, on request.

NONE = "not known: the task gives no single answer, or makes another question of these coordinates in this version"


class TruthLookup:
    """Asks one worker, which starts with the first question (about a second) and lives until `close`."""

    def __init__(self) -> None:
        self._scorer: Scorer | None = None
        self._known: dict[str, str] = {}
        self._one = asyncio.Lock()

    async def of(self, question: Question) -> str:
        """A right answer, or a sentence why there is none to show."""
        label = f"{question.ref.generator} {question.ref.label}"
        async with self._one:
            if label not in self._known:
                try:
                    self._known[label] = await self._ask(question)
                except ScorerUnavailable as error:
                    return f"not known: {error}"
        return self._known[label]

    async def _ask(self, question: Question) -> str:
        if self._scorer is None:
            self._scorer = await Scorer().__aenter__()
        return await self._scorer.truth(question) or NONE

    async def close(self) -> None:
        """Stop the worker."""
        scorer, self._scorer = self._scorer, None
        if scorer is not None:
            await scorer.__aexit__(None, None, None)


# Everything that is shown about a task before a model is trained on it: the command `tasks` and the wizard use the
# same.

SHOWN = 5
"""Rows that are shown."""
CELL = 200
"""Characters of a cell that are shown."""
PROBLEMS = 20
"""Reasons for leaving out rows that are shown, with their rows."""

NEVER_SHARED = "Rollouts of several turns stay on this machine: they are never shared with a swarm."

PREVIEW = 1500
"""Characters of a whole question that are shown."""


def compare_judge(name: str) -> str:
    """What has to be done before training on a judged task."""
    return (
        "It is judged by a model, not verified: before a model is trained on it, compare the judge with your own ratings: "
        f"sapo-desktop tasks judge {name}"
    )


def preview_rows(task: OwnTask) -> list[tuple[str, str]]:
    """(what distinguishes the question from others, answer) for the first rows, shortened for display."""
    shown = task.train[:SHOWN]
    return [
        (shorten_text(task.spec.cells(row) or task.spec.fill(row)), shorten_text(row.get(task.spec.answer, "")))
        for row in shown
    ]


def preview_question(task: OwnTask) -> list[str]:
    """The first row's question in lines, as the model will read it."""
    text = task.question(task.train[0])
    return [*text[:PREVIEW].split("\n"), *([f"… ({len(text):,} characters)"] if len(text) > PREVIEW else [])]


def shorten_text(text: str, most: int = CELL) -> str:
    """Text on one line, at most `most` characters, with its full length where it is longer."""
    plain = " ".join(text.split())
    return plain if len(plain) <= most else f"{plain[:most]}… ({len(text):,} characters)"


def describe_problems(task: OwnTask, table: RowTable | None, most: int = PROBLEMS) -> list[str]:
    """Rows that were left out; those of a file that was just read are numbered as in the file."""
    bad = list(task.problems)
    if table is not None:
        bad = [*table.problems, *(line for line in task.problems if line.partition(": ")[2] not in set(table.problems))]
        bad = [line.removeprefix("train.jsonl: ").removeprefix("heldout.jsonl: ") for line in bad]
    bad.sort(key=_row_number)
    alike: dict[str, list[str]] = {}
    for line in bad:
        row, _, reason = line.partition(": ")
        alike.setdefault(reason, []).append(row.removeprefix("Row "))
    lines = [f"Left out. {_those_rows(rows)}: {reason}" for reason, rows in alike.items()]
    more = sum(map(len, list(alike.values())[most:])) + (table.more if table is not None else 0)
    return [*lines[:most], f"{more:,} more rows were left out."] if more > 0 else lines[:most]


def _those_rows(rows: Sequence[str]) -> str:
    """Row 2; rows 2, 5 and 8; rows 2, 5, 8, 11, 14 and 12 more."""
    if len(rows) == 1:
        return f"Row {rows[0]}" if rows[0].isdigit() else rows[0]
    named, rest = rows[: review.NAMED], len(rows) - review.NAMED
    return f"Rows {', '.join(named)} and {rest:,} more" if rest > 0 else f"Rows {', '.join(named)}"


def _row_number(sentence: str) -> tuple[str, int]:
    """The sort key of problems: the file where one is named, then the row."""
    side, _, rest = sentence.rpartition("Row ")
    digits = rest.partition(":")[0]
    return side, int(digits) if digits.isdigit() else 0


def told_by_rows(task: OwnTask, table: RowTable | None, config: RunConfig | None, most: int = PROBLEMS) -> list[str]:
    """What the rows alone show, with their numbers. config: the run whose model must have room for them, None for none."""
    numbered = review.number_rows(task, table)
    fits = review.length_warnings(task, numbered, config) if config is not None else []
    return [*describe_problems(task, table, most), *review.review_rows(task, numbered), *fits]


def config_for(task: OwnTask, model: str, home: Home) -> RunConfig:
    """The settings of a run on this task alone. model: a base; "" is the one in the settings. Raises UsageError, AppError,
    BadTask."""
    require_base(model, home)
    config = settings.load_settings(home.settings).run
    return flags.propose_run(config, tasks=(task.spec.name,), external_groups=0, model=model or config.model)


def is_reasoning_model(base: str) -> bool:
    """Whether the model reasons before each answer, according to its files on this disk."""
    plain = RunConfig(model=base, tasks=())
    return flags.propose_run(plain).max_new_tokens > plain.max_new_tokens


def require_base(model: str, home: Home) -> None:
    """Raise UsageError where it is one of the person's own models."""
    mine = [entry.record.base for entry in store.all_models(home) if entry.name == model]
    if mine and model not in mine and not Path(model).exists():
        raise UsageError(
            f"{model} is a model of yours, and a task is tried on a base: starter, a folder, or a hub id. "
            f"A new model on this task starts from one; what {model} has learned says: sapo-desktop eval {model}"
        )


def describe_task(task: OwnTask, reason: str) -> list[str]:
    """A description of the task."""
    spec = task.spec
    judged = " + ".join(map(_terms, spec.verifier)) + (f" ({reason})" if reason else "")
    return [
        f"Task {spec.name}: {len(task.train):,} row{'' if len(task.train) == 1 else 's'} to train on, "
        f"{len(task.held_out):,} held out to measure with.",
        f"Version {task.digest[:12]}.",
        *([spec.description] if spec.description else []),
        *([f"System prompt: {spec.system}"] if spec.system else []),
        f"Judged by: {judged}; the answer is taken from: {spec.extract}.",
        *([f"Worked examples in each question: {spec.shots}."] if spec.shots else []),
        *(
            [f"Difficulty: {_levels(task)}. Sampled where success is neither rare nor certain."]
            if spec.difficulty
            else []
        ),
        *([f"{spec.turns} turns at most, with tools. {NEVER_SHARED}"] if spec.turns else []),
    ]


def foreign_form(config: RunConfig) -> list[str]:
    """A sentence for each own task of a run whose answers stand between tags, as only the toys were trained to write them."""
    if config.model in BUNDLED or config.model.partition(":")[0] == "fake":
        return []
    return [
        f"Answers to {name} count only between <answer> and </answer>, since it was made for {BUNDLED[0]}. Made for this base it "
        f"needs none: sapo-desktop tasks new FILE --model {shlex.quote(config.model)}"
        for name in config.tasks
        if library.has_task(name) and library.load_task(name).spec.extract == "tags"
    ]


def _terms(part: Verifier) -> str:
    """The verifier's kind, what deviations it allows, and the form of an answer."""
    terms = [str(part.__struct_config__.tag)]
    if isinstance(part, NumberVerifier):
        terms += [f"{name} {value:g}" for name, value in (("abs", part.abs), ("rel", part.rel)) if value]
        terms += [f"units {' '.join(part.units)}{' (needed)' * part.need_unit}"] if part.units else []
        terms += ['decimal mark ","'] if part.decimal == "," else []
    if isinstance(part, ExactVerifier) and part.case:
        terms += ["case counts"]
    if isinstance(part, RulesVerifier):
        terms += [f'"{part.rules}"']
    if isinstance(part, ChoiceVerifier) and part.options:
        terms += [f"of {len(part.options)}"]
    return ", ".join(terms)


def _levels(task: OwnTask) -> str:
    return ", ".join(f"{len(places):,} rows {name}" for name, places in task.levels.items())
