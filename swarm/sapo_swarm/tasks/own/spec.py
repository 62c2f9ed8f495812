"""task.toml: what a task asks and how it is judged, as data."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.patterns import Patterns
from sapo_swarm.tasks.own.verifiers import Column, Environment, Exact, Judged, Part, Regex, Verifier
from sapo_swarm.types import Name

Extract = Literal["tags", "last_line", "last_number", "json", "whole"]
HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,39})\}")
"""Where a cell goes in a prompt."""
MAX_SHOTS = 4


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task without its rows.

    prompt: the question, {column} stands for a cell. system: "" is the app's own. answer: the column with the truth.
    extract: where a completion's answer stands (tags: the <answer>...</answer> at its end). max_new_tokens: what an answer needs,
    0 is the run's setting. heldout_share: of rows.jsonl, where train and held-out are not two files; split: by which rule, see
    sapo_swarm.tasks.own.split. difficulty: the column that says how hard a row is, "" for none. shots: worked examples in each
    question, see sapo_swarm.tasks.own.worked_examples.
    """

    format: Literal[1] = 1
    name: Name
    description: Annotated[str, Meta(max_length=2000)] = ""
    licence: Annotated[str, Meta(max_length=200)] = ""
    prompt: Annotated[str, Meta(min_length=1, max_length=4000)] = "{question}"
    system: Annotated[str, Meta(max_length=4000)] = ""
    answer: Column = "answer"
    extract: Extract = "tags"
    max_new_tokens: Annotated[int, Meta(ge=0, le=8192)] = 0
    heldout_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.2
    split: Literal["content", "balanced"] = "content"
    difficulty: Column = ""
    shots: Annotated[int, Meta(ge=0, le=MAX_SHOTS)] = 0
    verifier: Annotated[tuple[Verifier, ...], Meta(min_length=1, max_length=8)] = (Exact(),)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the prompt and the verifiers read: every row needs them."""
        found = [
            *HOLE.findall(self.prompt),
            *(truth_column(self, part) for part in self.verifier if needs_truth(part)),
            *([self.difficulty] if self.difficulty else []),
        ]
        return tuple(dict.fromkeys(found))

    @property
    def turns(self) -> int:
        """Turns of the model in an environment, at most; 0 where the task is a question and an answer."""
        return next((part.turns for part in self.verifier if isinstance(part, Environment)), 0)

    @property
    def rubric(self) -> str:
        """What a judge judges by; "" where the answers are verified."""
        return next((part.rubric for part in self.verifier if isinstance(part, Judged)), "")

    def fill(self, row: dict[str, str], text: str = "") -> str:
        """The prompt of a row, or another text, with the row's cells. A cell is text: what looks like a {column} in it stays
        as it is."""
        return HOLE.sub(lambda hole: row[hole[1]], text or self.prompt)

    def cells(self, row: dict[str, str]) -> str:
        """What tells a row's question from others: its cells without the wording around them."""
        return "\n".join(row[name] for name in dict.fromkeys(HOLE.findall(self.prompt)))


def truth_column(spec: TaskSpec, part: Part) -> str:
    """The column that holds the right answer for this verifier."""
    return part.column or spec.answer


def right_answer(spec: TaskSpec, row: dict[str, str]) -> str:
    """A right answer of the row: of several in its cell the first, "" where it has none."""
    parts = (part for part in spec.verifier if isinstance(part, Exact) and truth_column(spec, part) == spec.answer)
    between = next((part.alternatives for part in parts if part.alternatives), "")
    cell = row.get(spec.answer, "")
    return next(filter(None, map(str.strip, cell.split(between))), "") if between else cell


def needs_truth(part: Part) -> bool:
    """The verifier compares with a cell of the row."""
    from sapo_swarm.tasks.own.verifiers import Format, Function, JsonSchema, Length

    return not isinstance(part, (Environment, Format, Function, JsonSchema, Judged, Length)) and not (
        isinstance(part, Regex) and bool(part.pattern)
    )


def may_have_examples(spec: TaskSpec) -> bool:
    """Its rows can be shown with their right answers: the answer column holds what a completion may be."""
    from sapo_swarm.tasks.own.verifiers import TRUTHFUL

    compared = any(isinstance(part, TRUTHFUL) and truth_column(spec, part) == spec.answer for part in spec.verifier)
    return compared and spec.extract != "tags" and not spec.turns and not spec.rubric


def parse(text: str, origin: str) -> TaskSpec:
    """The spec that task.toml holds. Raises BadTask with what to mend."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError of its own
        raise BadTask(f"{origin} is not valid TOML ({str(error)[:200]}). Mend that line.") from error
    return checked(tables, origin)


def checked(tables: object, origin: str) -> TaskSpec:
    """The spec in these tables. origin: named in complaints. Raises BadTask with what to mend."""
    try:
        spec = msgspec.convert(tables, TaskSpec)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadTask(f"{origin}: {str(error)[:300]}. Tasks to compare it with: sapo-desktop tasks examples") from error
    patterns = Patterns()
    for part in spec.verifier:
        if isinstance(part, Regex) and part.pattern:
            patterns.check(part.pattern, origin)
    if spec.rubric and len(spec.verifier) > 1:
        raise BadTask(
            f"{origin}: a judged task has no other verifier, so that no figure mixes what was judged with what was verified. "
            "Make two tasks of it."
        )
    if not HOLE.search(spec.prompt):
        raise BadTask(
            f"{origin}: the prompt names no column, so every question would be the same. Write {{question}} in it."
        )
    if spec.shots and not may_have_examples(spec):
        raise BadTask(
            f"{origin}: shots = {spec.shots} shows rows with their right answers, and this task has none to show, or wants "
            "them in tags. Take shots out, or set another extract (last_line) and a verifier that compares with the answers."
        )
    return spec
