"""From a file of rows to a proposed task: which columns, where the answer stands, how it is judged. Nothing is run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.ratings import without_bad
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own.folder import MAX_CODE, OwnTask, make, split
from sapo_swarm.tasks.own.rows import Table, read_bytes, read_table, slug
from sapo_swarm.tasks.own.spec import Extract, TaskSpec
from sapo_swarm.tasks.own.verifiers import (
    Choice,
    Environment,
    Exact,
    Function,
    Items,
    ItemSet,
    JsonEqual,
    Judged,
    Number,
    Order,
    Verifier,
)
from sapo_swarm.types import UNREADABLE

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
MOST = 0.95
"""Share of the answers that must look alike for a verifier to be proposed for them."""
FEW = 12
"""Different answers of a choice at most."""
_MEASURED = re.compile(r"([-+−]?[\d.,]*\d)\s*([^\d\s.,]{1,12})\Z")
_PLAIN = re.compile(r"[-+]?(\d+)(?:\.(\d+))?\Z")
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
class Proposal:
    """A verifier, and why it is on offer."""

    verifier: Verifier
    reason: str

    @property
    def kind(self) -> str:
        """Its name in task.toml."""
        return str(self.verifier.__struct_config__.tag)


@dataclass(frozen=True)
class Draft:
    """A task that is not stored yet. table: everything that was read, for its row numbers; reason: why this verifier;
    proposals: every verifier on offer, the proposed one first. guessed: which columns, where a name did not say it; header: that
    the first row may be no header. Both "" where all is plain."""

    task: OwnTask
    table: Table
    reason: str
    proposals: tuple[Proposal, ...]
    guessed: str = ""
    header: str = ""


def draft(path: Path, wishes: Wishes, table: Table | None = None) -> Draft:
    """A proposed task from a file. table: what it holds, where it was read already. Raises BadTask, UsageError, OSError."""
    table = without_bad(table or read_table(path))
    if not table.rows:
        first = f" {table.problems[0]}" if table.problems else ""
        raise UsageError(f"{path.name} holds no usable row.{first}")
    answer = _column(
        table, wishes.answer, ANSWERS, "answer", "" if wishes.rubric or wishes.reward else _last_that_varies(table)
    )
    prompt = wishes.prompt or "{" + _question(table, wishes.question, answer) + "}"
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
        difficulty=next((name for name in HARDNESS if name in table.columns and name != answer), ""),
    )
    missing = [name for name in spec.columns if name not in table.columns]
    if missing:
        raise UsageError(f"{path.name} has no column {missing[0]!r}. It has: {', '.join(table.columns)}.")
    sides = (table, read_table(wishes.heldout)) if wishes.heldout is not None else split(table, spec)
    if wishes.heldout is None and not sides[1].rows:
        raise UsageError(
            f"{path.name} holds one question, and a task needs at least two: one to train on, and one that is held out "
            "to measure with."
        )
    guessed = _guessed({"question": "" if wishes.prompt else prompt[1:-1], "answer": answer}, wishes)
    return Draft(make(spec, *sides, code=code), table, chosen.reason, offered, guessed, _header(table))


def _guessed(columns: dict[str, str], wishes: Wishes) -> str:
    """Which column is what, where no name said so; "" where names or the person did."""
    usual = {"question": QUESTIONS, "answer": ANSWERS}
    unsaid = [what for what, name in columns.items() if name and name not in usual[what] and not getattr(wishes, what)]
    told = [
        f"{what.capitalize()}: column {name}{' (guessed)' * (what in unsaid)}."
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
        if head and (_PLAIN.match(head) or head.endswith("?") or any(row[name].strip() == head for row in table.rows)):
            return "The first row was taken for column names; if it is data, add a header."
    return ""


def proposals(truths: Sequence[str]) -> tuple[Proposal, ...]:
    """The verifier that fits these answers best, and the others that compare with a row's answer."""
    best = Proposal(*propose(truths))
    others = (
        Proposal(Exact(), "the text itself, whatever its case and spacing"),
        Proposal(Number(units=_units(truths)), "an equal number; units may stand beside it"),
        Proposal(Choice(), "the right option alone, in any case"),
        Proposal(Items(separator=separator(truths)), "the same items in the same places"),
        Proposal(ItemSet(separator=separator(truths)), "the same items in any order"),
        Proposal(Order(separator=separator(truths)), "the same items in the right order"),
        Proposal(JsonEqual(), "equal JSON; the order of keys does not count"),
    )
    return (best, *(other for other in others if other.kind != best.kind))


def _wished(offered: Sequence[Proposal], kind: str) -> Proposal:
    """The first one, or the one of that kind. Raises UsageError."""
    found = next((one for one in offered if kind in ("", one.kind)), None)
    if found is None:
        known = ", ".join(one.kind for one in offered)
        raise UsageError(f"{kind!r} cannot be made from a file alone: write it into task.toml. From a file: {known}.")
    return found


def separator(truths: Sequence[str]) -> str:
    """What most likely stands between items."""
    return max((",", ";", "|", " "), key=lambda mark: sum(mark in text for text in truths[:1000]))


def _units(truths: Sequence[str]) -> tuple[str, ...]:
    found = Counter(match[2] for text in truths if (match := _MEASURED.match(text)))
    return tuple(sorted(unit for unit, _ in found.most_common(32)))


def propose(truths: Sequence[str]) -> tuple[Verifier, str]:  # noqa: PLR0911 - one return a kind of answer
    """A verifier for these answers, and why."""
    if not truths:
        return Exact(), "there is no answer to look at"
    numbers = [found for text in truths if (found := _PLAIN.match(text.replace(",", "")))]
    if len(numbers) >= MOST * len(truths):
        places = max(len(found[2] or "") for found in numbers)
        if places == 0:
            return Number(), "the answers are whole numbers"
        return Number(abs=float(f"5e-{places + 1}")), f"numbers with up to {places} decimal places"
    measured = [found for text in truths if (found := _MEASURED.match(text))]
    units = Counter(found[2] for found in measured)
    if len(measured) >= MOST * len(truths) and len(units) <= 32:
        return Number(rel=0.001, units=tuple(sorted(units))), "the answers are numbers with a unit"
    if sum(map(_is_json, truths)) >= MOST * len(truths):
        return JsonEqual(), "the answers are JSON"
    options = Counter(text.casefold() for text in truths)
    if len(options) <= FEW and len(truths) >= 4 * len(options):
        shown = {text.casefold(): text for text in reversed(truths)}
        if all(len(text) <= 64 for text in shown.values()):
            return Choice(options=tuple(sorted(shown.values()))), _options_in_words(len(options))
    return Exact(), "text, whatever its case and spacing"


def _options_in_words(count: int) -> str:
    return f"there are only {count} different answers" if count > 1 else "there is only one answer"


def _is_json(text: str) -> bool:
    if text[:1] not in "{[":
        return False
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True


def free_name(text: str) -> str:
    """A task's name from a file's. Raises UsageError."""
    name = slug(text)
    if name in CATALOGUE or name in RESERVED:
        raise UsageError(f"The name {name!r} is taken. Give the task another with --name.")
    return name


def _column(table: Table, wished: str, usual: Sequence[str], what: str, fallback: str) -> str:
    if wished:
        if slug(wished) not in table.columns:
            raise UsageError(f"There is no column {wished!r} for the {what}. The file has: {', '.join(table.columns)}.")
        return slug(wished)
    return next((name for name in usual if name in table.columns), fallback)


def _question(table: Table, wished: str, answer: str) -> str:
    """The column that is asked: the one named so, else the one with the longest texts."""
    left = [name for name in table.columns if name != answer]
    if not left:
        raise UsageError(f"The file has one column, {answer!r}. A task needs a question and an answer for each row.")
    longest = max(left, key=lambda name: sum(len(row.get(name, "")) for row in table.rows[:1000]))
    return _column(table, wished, [name for name in QUESTIONS if name != answer], "question", longest)
