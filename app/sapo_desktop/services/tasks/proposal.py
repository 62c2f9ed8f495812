"""From a file of rows to a proposed task: which columns, where the answer stands, how it is judged. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.answers import DIGITS, KINDS, Proposal, proposals
from sapo_desktop.services.tasks.ratings import without_bad
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.folder import MAX_CODE, OwnTask, make, split
from sapo_swarm.tasks.own.headings import slug
from sapo_swarm.tasks.own.levels import sorted_out
from sapo_swarm.tasks.own.rows import Row, Table, read_bytes, read_table
from sapo_swarm.tasks.own.spec import Extract, TaskSpec
from sapo_swarm.tasks.own.verifiers import Environment, Function, Judged

QUESTIONS = (
    *("question", "prompt", "input", "instruction", "text", "problem", "query", "source", "from"),
    *("frage", "aufgabe", "pregunta", "domanda"),
)
ANSWERS = (
    *(
        "answer",
        "output",
        "target",
        "label",
        "category",
        "completion",
        "expected",
        "response",
        "solution",
        "result",
        "to",
    ),
    *("antwort", "losung", "ergebnis", "reponse", "respuesta", "risposta"),
)
"""Columns as people call them, in a few languages; accents are gone by then."""
HARDNESS = ("difficulty", "level")
"""Columns that say how hard a row is."""
RESERVED = ("new", "check", "show", "judge", "remove")


@dataclass(frozen=True)
class Wishes:
    """What the person said about the file; "" is for the app to propose."""

    name: str = ""
    question: str = ""
    answer: str = ""
    prompt: str = ""
    extract: Extract | Literal[""] = ""
    heldout: Path | None = None
    environment: Path | None = None
    reward: Path | None = None
    verifier: str = ""
    rubric: str = ""


@dataclass(frozen=True)
class Draft:
    """A task that is not stored yet. table: everything that was read, for its row numbers; reason: why this verifier;
    proposals: every verifier on offer, the proposed one first. guessed: which columns, where a name did not say it, "" where it
    did; notes: that the first row may be no header, or why rows have no levels."""

    task: OwnTask
    table: Table
    reason: str
    proposals: tuple[Proposal, ...]
    guessed: str = ""
    notes: tuple[str, ...] = ()


def draft(path: Path, wishes: Wishes, table: Table | None = None) -> Draft:
    """A proposed task from a file. table: what it holds, where it was read already. Raises BadTask, UsageError, OSError."""
    table = without_bad(table or read_table(path))
    if not table.rows:
        first = f" {table.problems[0]}" if table.problems else ""
        raise UsageError(f"{path.name} holds no usable row.{first}")
    answer = _column(
        table, wishes.answer, ANSWERS, "answer", "" if wishes.rubric or wishes.reward else _last_that_varies(table)
    )
    asked = re.sub(r"\{([^{}]+)\}", lambda hole: f"{{{table.names.get(hole[1].strip(), hole[1])}}}", wishes.prompt)
    prompt = asked or "{" + _question(table, wishes.question, answer) + "}"
    truths = [row[answer].strip() for row in table.rows if row.get(answer, "").strip()]
    offered = proposals(truths)
    chosen, code = _wished(offered, wishes.verifier), b""
    if wishes.environment is not None:
        chosen, code = Proposal(Environment(), "it says the reward"), read_bytes(wishes.environment, MAX_CODE)
    if wishes.reward is not None:
        chosen, code = Proposal(Function(), "it gives the reward"), read_bytes(wishes.reward, MAX_CODE)
    if wishes.rubric:
        chosen = Proposal(Judged(rubric=wishes.rubric[:4000]), "a model says whether it fulfils your rubric")
    spec = TaskSpec(
        name=free_name(wishes.name or path.stem),
        prompt=prompt,
        answer=answer,
        extract=wishes.extract or ("tags" if wishes.reward is None else "whole"),
        verifier=(chosen.verifier,),
    )
    missing = [name for name in spec.columns if name not in table.columns]
    if missing:
        raise UsageError(f"{path.name} has no column {missing[0]!r}. It has: {', '.join(table.columns)}.")
    held_out = read_table(wishes.heldout, table.names) if wishes.heldout is not None else None
    hard, told = _difficulty(spec, [*table.rows, *(held_out.rows if held_out is not None else ())])
    spec = msgspec.structs.replace(spec, difficulty=hard)
    sides = (table, held_out) if held_out is not None else split(table, spec)
    if wishes.heldout is None and not sides[1].rows:
        raise UsageError(
            f"{path.name} holds one question, and a task needs at least two: one to train on, and one that is held out "
            "to measure with."
        )
    guessed = _guessed(table, {"question": "" if wishes.prompt else prompt[1:-1], "answer": answer}, wishes)
    notes = tuple(filter(None, (_header(table), told)))
    return Draft(make(spec, *sides, code=code), table, chosen.reason, offered, guessed, notes)


def _difficulty(spec: TaskSpec, rows: Sequence[Row]) -> tuple[str, str]:
    """The column that says how hard each row is, "" for none; and why one that is called so does not."""
    used = [row for row in rows if all(row.get(name, "").strip() for name in spec.columns)]
    column = next((name for name in HARDNESS if name != spec.answer and any(name in row for row in used)), "")
    if not column:
        return "", ""
    without = sum(not row.get(column, "").strip() for row in used)
    if without:
        return "", f"No levels of difficulty: column {column} is empty in {without:,} of {len(used):,} rows."
    try:
        sorted_out(column, used)
    except BadTask as error:
        return "", f"No levels of difficulty: {error}"
    return column, ""


def _guessed(table: Table, columns: dict[str, str], wishes: Wishes) -> str:
    """Which column is what, where no name said so; "" where names or the person did."""
    usual = {"question": QUESTIONS, "answer": ANSWERS}
    unsaid = [what for what, name in columns.items() if name and name not in usual[what] and not getattr(wishes, what)]
    told = [
        f"{what.capitalize()}: column {_heading(table, name)}{' (guessed)' * (what in unsaid)}."
        for what, name in columns.items()
        if name
    ]
    return " ".join(told) if unsaid else ""


def _last_that_varies(table: Table) -> str:
    """The last column with more than one value: who entered the rows, or when, is no answer."""
    varied = (name for name in reversed(table.columns) if len({row.get(name) for row in table.rows[:1000]}) > 1)
    return next(varied, table.columns[-1])


def _header(table: Table) -> str:
    """A sentence where the first row looks like data: no usual name in it, and a number, a question, or a cell that stands
    again in its own column."""
    if set(table.columns) & {*QUESTIONS, *ANSWERS, *HARDNESS}:
        return ""
    for name, head in zip(table.columns, map(str.strip, table.heads), strict=False):
        if head and (DIGITS.match(head) or head.endswith("?") or any(row[name].strip() == head for row in table.rows)):
            return "The first row was taken for column names; if it is data, add a header."
    return ""


def _wished(offered: Sequence[Proposal], kind: str) -> Proposal:
    """The first one, or the one of that kind. Raises UsageError."""
    found = next((one for one in offered if kind in ("", one.kind)), None)
    if found is None:
        known = ", ".join(one.kind for one in offered)
        if kind in KINDS:
            raise UsageError(f"The file's own answers are wrong by {kind!r}. Mend them, or choose another: {known}.")
        raise UsageError(f"{kind!r} cannot be made from a file alone: write it into task.toml. From a file: {known}.")
    return found


def free_name(text: str) -> str:
    """A task's name from a file's. Raises UsageError."""
    name = slug(text) or "my_task"
    if name in CATALOGUE or name in RESERVED:
        raise UsageError(f"The name {name!r} is taken. Give the task another with --name.")
    return name


def _column(table: Table, wished: str, usual: Sequence[str], what: str, fallback: str) -> str:
    if wished:
        if found := _called(table, wished):
            return found
        heads = ", ".join(_heading(table, name) for name in table.columns)
        raise UsageError(f"There is no column {wished!r} for the {what}. The file has: {heads}.")
    return next((name for name in usual if name in table.columns), fallback)


def _called(table: Table, wished: str) -> str:
    """The column that is called so in the file, or so but for case and accents; "" for none."""
    folded = {head.casefold(): name for head, name in table.names.items()}
    wished, plain = wished.strip(), slug(wished)
    return table.names.get(wished) or folded.get(wished.casefold()) or (plain if plain in table.columns else "")


def _heading(table: Table, column: str) -> str:
    """What the column is called in the file."""
    heads = (head for head, name in table.names.items() if name == column)
    return safe_text(next(heads, ""), 60, lines=False) or column


def _question(table: Table, wished: str, answer: str) -> str:
    """The column that is asked: the one named so, else the one with the longest texts."""
    left = [name for name in table.columns if name != answer]
    if not left:
        raise UsageError(f"The file has one column, {answer!r}. A task needs a question and an answer for each row.")
    longest = max(left, key=lambda name: sum(len(row.get(name, "")) for row in table.rows[:1000]))
    return _column(table, wished, [name for name in QUESTIONS if name != answer], "question", longest)
