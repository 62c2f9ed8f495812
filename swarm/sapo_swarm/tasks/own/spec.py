"""What a task asks and how it is judged, as data: the verifiers that it can declare, and task.toml.

Nothing here judges: that is sapo_swarm.scoring.declared_verifiers. An unusable task is a BadTask with the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.errors import SwarmError
from sapo_swarm.tasks.own.rules import HOLE, parse_rules
from sapo_swarm.types import Name

# What may be wrong with a task folder.


class BadTask(SwarmError, ValueError):
    """A task folder or a file of rows that cannot be used; the message says where, why and what to do."""

    exit_code: ClassVar[int] = 2


# The verifiers that a task can declare: what is compared, as data. How they judge is in sapo_swarm.scoring.declared_verifiers.
#
# Every part gives a score in [0, 1]; a task's score is their weighted mean. Strictly right is only what every part
# scores 1. `column` names the column with the truth, "" the task's answer column.

Column = Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,39})?\Z")]
Short = Annotated[str, Meta(max_length=64)]
Tolerance = Annotated[float, Meta(ge=0.0, le=1e12)]
MAX_PATTERN = 500


class VerifierPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Fields that all verifiers have."""

    weight: Annotated[float, Meta(gt=0.0, le=1000.0)] = 1.0
    column: Column = ""


class ExactVerifier(VerifierPart, frozen=True, tag="exact"):
    """The truth's text. Both sides lose outer and repeated white space; Unicode is compared in form NFKC.

    case: letters must agree in case. alternatives: a separator between several truths, any of which is right.
    """

    case: bool = False
    alternatives: Short = ""


class NumberVerifier(VerifierPart, frozen=True, tag="number"):
    """A number within `abs` or within `rel` of the truth, whichever is wider.

    units: written after a number and not compared, except that an answer's unit must be the truth's where both have one.
    need_unit: an answer without the truth's unit is wrong, and case does not count in units that differ in more than that.
    decimal: the decimal mark; the other of "." and "," (and a blank) may stand between thousands.
    """

    abs: Tolerance = 0.0
    rel: Tolerance = 0.0
    units: Annotated[tuple[Short, ...], Meta(max_length=64)] = ()
    need_unit: bool = False
    decimal: Annotated[str, Meta(pattern=r"^[.,]\Z")] = "."


class ChoiceVerifier(VerifierPart, frozen=True, tag="choice"):
    """One of the options, in any case, with or without brackets or a full stop: "B", "(b)", "B."."""

    options: Annotated[tuple[Short, ...], Meta(max_length=256)] = ()


class ListVerifier(VerifierPart, frozen=True, tag="list"):
    """The truth's items in its order. Partial credit: the share of positions that agree."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class ItemSet(VerifierPart, frozen=True, tag="set"):
    """The truth's items in any order, repeats ignored. Partial credit: shared items over all items."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class OrderVerifier(VerifierPart, frozen=True, tag="order"):
    """The truth's items, each once, in its order. Partial credit: the share of pairs that are in the right order."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class RegexVerifier(VerifierPart, frozen=True, tag="regex"):
    """The whole answer matches `pattern`, or the row's own pattern if that is empty."""

    pattern: Annotated[str, Meta(max_length=MAX_PATTERN)] = ""
    case: bool = True


class JsonSchema(VerifierPart, frozen=True, tag="json_schema"):
    """JSON that fits the JSON Schema in the folder's schema.json. Nothing is fetched from anywhere."""


class JsonEqual(VerifierPart, frozen=True, tag="json_equal"):
    """JSON equal to the truth's; the order of keys does not count. Partial credit: the share of leaves that agree.

    ordered: lists must be in the truth's order. abs: numbers may differ by this much.
    """

    ordered: bool = True
    abs: Tolerance = 0.0


class SqlVerifier(VerifierPart, frozen=True, tag="sql"):
    """A query whose result on the folder's fixture.sqlite equals that of the truth's query. ordered: the order of rows
    counts."""

    ordered: bool = False


class LengthVerifier(VerifierPart, frozen=True, tag="length"):
    """The answer's number of characters lies within the limits; with `whole` that of the whole completion."""

    least: Annotated[int, Meta(ge=0, le=100_000)] = 0
    most: Annotated[int, Meta(ge=1, le=100_000)] = 8192
    whole: bool = False


class FormatVerifier(VerifierPart, frozen=True, tag="format"):
    """The answer begins with `starts` and ends with `ends`. only: no other answer before it, and nothing behind it."""

    starts: Short = ""
    ends: Short = ""
    only: bool = True


class RulesVerifier(VerifierPart, frozen=True, tag="rules"):
    """The answer keeps every rule of a text such as `3 to 8 words; contains {word}`: see rules.py. It earns the share of them
    that it keeps, with or without the run's partial credit."""

    rules: Annotated[str, Meta(min_length=1, max_length=1000)] = "at least 1 word"


class PythonTests(VerifierPart, frozen=True, tag="python_tests"):
    """Python that passes the row's unit tests: lines such as `double(4) == 8`. Partial credit: the share of tests that pass.

    What the model wrote is run, contained; the person says yes to that once per task.
    """


class FunctionVerifier(VerifierPart, frozen=True, tag="function"):
    """The function in the folder's reward.py, which runs only after the person said yes to it."""


class EnvironmentVerifier(VerifierPart, frozen=True, tag="environment"):
    """The class in the folder's environment.py, whose tools the model may call and which gives the reward at the end. It runs
    only after the person said yes to it. turns: of the model, at most; the last one calls nothing."""

    turns: Annotated[int, Meta(ge=1, le=32)] = 8


class JudgedVerifier(VerifierPart, frozen=True, tag="judged"):
    """A language model's verdict on the answer by the rubric: it fulfils all of it, or not. Judged, not verified: it is the
    only verifier of its task, and its rewards are never combined with verified ones in one figure."""

    rubric: Annotated[str, Meta(min_length=1, max_length=4000)] = "The answer is right, complete and to the point."


Verifier = (
    ExactVerifier
    | NumberVerifier
    | ChoiceVerifier
    | ListVerifier
    | ItemSet
    | OrderVerifier
    | RegexVerifier
    | JsonSchema
    | JsonEqual
    | SqlVerifier
    | LengthVerifier
    | FormatVerifier
    | RulesVerifier
    | PythonTests
    | FunctionVerifier
    | EnvironmentVerifier
    | JudgedVerifier
)
TRUTHFUL = (ExactVerifier, NumberVerifier, ChoiceVerifier, ListVerifier, ItemSet, OrderVerifier, JsonEqual, SqlVerifier)
"""Verifiers for which the truth itself is a right answer."""
RUNS_CODE = (PythonTests, FunctionVerifier, EnvironmentVerifier)
"""Verifiers that run code: only in tasks made on this machine, after a yes, never from a swarm."""
GRADING = (RulesVerifier, FunctionVerifier, EnvironmentVerifier)
"""Verifiers that grade as the person said: a task with no others pays their grades, not only for what is wholly right."""


# Unit tests of generated Python, as a row's cell: lines such as `double(4) == 8`. Only parsed here, never run.
#
# The expected value must be a literal: it stays with the verifier, and the process that runs the model's code never
# sees it.

MAX_TESTS = 32
MAX_TEXT = 4_000
"""Characters of a row's tests."""


@dataclass(frozen=True)
class UnitTest:
    """An expression over the model's code, and the value that it must have."""

    expression: str
    expected: Any


@lru_cache(maxsize=4096)
def unit_tests(cell: str) -> tuple[UnitTest, ...]:
    """The tests of a cell, one per line, with or without `assert`. Raises BadTask that says what to fix."""
    if len(cell) > MAX_TEXT:
        raise BadTask(f"The tests have {len(cell):,} characters; up to {MAX_TEXT:,} are read.")
    try:
        tree = ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTask(f"The tests are no Python ({error}). Write one a line, such as: double(4) == 8") from error
    if not 1 <= len(tree.body) <= MAX_TESTS:
        raise BadTask(f"{len(tree.body)} tests; a row has 1 to {MAX_TESTS}.")
    return tuple(_test(line) for line in tree.body)


def _test(line: ast.stmt) -> UnitTest:
    expression = line.test if isinstance(line, ast.Assert) else line.value if isinstance(line, ast.Expr) else None
    if not isinstance(expression, ast.Compare) or len(expression.ops) != 1 or not isinstance(expression.ops[0], ast.Eq):
        raise BadTask(f"Test {ast.unparse(line)[:80]!r} is no comparison. Write it so: double(4) == 8")
    try:
        expected = ast.literal_eval(expression.comparators[0])
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadTask(
            f"Test {ast.unparse(line)[:80]!r}: right of == must stand a plain value, such as 8, 'text' or [1, 2]."
        ) from error
    return UnitTest(ast.unparse(expression.left), expected)


# Regular expressions of a task: none whose matching never ends, and in total no more than can be checked in about a
# second.

_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
MANY = 50
"""Repeats of something that itself repeats: up to this many they are quick to match."""
MAX_CLASSES = 10_000
"""Most that the classes of one pattern may cost, in plain characters: five times all letters of all scripts."""
MAX_WORK = 250_000
"""Total cost of different patterns, in plain characters; about 300 of these compile in a millisecond."""
_EACH, _TABLE, _SHARE = 8, 40, 40
"""Cost of a pattern and of a class beyond U+00FF, in plain characters; _SHARE characters of a range cost as much as one."""


class PatternChecker:
    """The patterns of one part of a task: equal ones are checked once, and their total cost is limited."""

    def __init__(self) -> None:
        self._good: set[str] = set()
        self._work = 0

    def check(self, pattern: str, origin: str) -> None:
        """Raises BadTask for a pattern that is no regular expression, that some text takes forever to match, or that is one
        too many."""
        if pattern in self._good:
            return
        if len(pattern) > MAX_PATTERN:
            raise BadTask(f"{origin}: a pattern may have {MAX_PATTERN} characters, not {len(pattern)}.")
        self._spend(_EACH + len(pattern), origin)
        from re import _parser  # type: ignore[attr-defined]  # the only parse tree that there is

        try:
            tree = _parser.parse(pattern)
            classes = _classes(tree)
            if classes > MAX_CLASSES:
                raise BadTask(
                    f"{origin}: the ranges in {pattern[:80]!r} hold too many characters. Name what is left out: [^...]."
                )
            self._spend(classes, origin)
            re.compile(pattern)
            nested = _nested(tree, False)
        except (re.error, RecursionError, OverflowError) as error:
            raise BadTask(f"{origin}: {pattern[:80]!r} is no regular expression ({error}).") from error
        if nested:
            raise BadTask(
                f"{origin}: {pattern[:80]!r} repeats something that repeats; such a pattern can take for ever. Simplify it."
            )
        self._good.add(pattern)

    def _spend(self, work: int, origin: str) -> None:
        if self._work + work > MAX_WORK:
            raise BadTask(
                f"{origin}: the patterns up to here are all that are checked: {MAX_WORK:,} characters of different ones, where a "
                "range of many characters counts for more. Use fewer."
            )
        self._work += work


def _classes(tree: Any) -> int:
    """The cost of compiling the classes: one that goes beyond U+00FF fills a table, character by character."""
    cost = 0
    for name, value in tree:
        if str(name) != "IN":
            cost += sum(map(_classes, _bodies(value)))
            continue
        ends = [(at, at) if str(kind) == "LITERAL" else at for kind, at in value if str(kind) in ("LITERAL", "RANGE")]
        if any(last > 0xFF for _, last in ends):
            cost += _TABLE + sum(min(last, 0xFFFF) - min(first, 0xFFFF) for first, last in ends) // _SHARE
    return cost


def _nested(tree: Any, inside: bool) -> bool:
    """An unbounded repeat inside another one, or a back-reference."""
    for name, value in tree:
        if str(name) in _REPEATS:
            low, high, body = value
            repeats = int(high) > MANY and low != high
            if (inside and repeats) or _nested(body, inside or repeats):
                return True
        elif str(name) in ("GROUPREF", "GROUPREF_EXISTS") or any(_nested(part, inside) for part in _bodies(value)):
            return True
    return False


def _bodies(value: Any) -> list[Any]:
    """The sub-patterns in an argument of a parse tree's node."""
    from re import _parser  # type: ignore[attr-defined]

    if isinstance(value, _parser.SubPattern):
        return [value]
    return [body for item in value for body in _bodies(item)] if isinstance(value, (tuple, list)) else []


# task.toml: what a task asks and how it is judged, as data.

Extract = Literal["tags", "last_line", "last_number", "json", "whole"]
MAX_SHOTS = 4


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task without its rows.

    prompt: the question, {column} stands for a cell. system: "" is the app's own. answer: the column with the truth. extract:
    where a completion's answer stands (tags: the <answer>...</answer> at its end). max_new_tokens: what an answer needs, 0 is
    the run's setting. heldout_share: of rows.jsonl, if train and held-out are not two files; split: by which rule, see
    row_roles.py. difficulty: the column that says how hard a row is, "" for none. shots: worked examples in each question.
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
    verifier: Annotated[tuple[Verifier, ...], Meta(min_length=1, max_length=8)] = (ExactVerifier(),)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the prompt and the verifiers read: every row needs them."""
        names = [
            *HOLE.findall(self.prompt),
            *(truth_column(self, part) for part in self.verifier if needs_truth(part)),
            *(name for part in self.verifier if isinstance(part, RulesVerifier) for name in HOLE.findall(part.rules)),
            *([self.difficulty] if self.difficulty else []),
        ]
        return tuple(dict.fromkeys(names))

    @property
    def turns(self) -> int:
        """Most turns of the model in an environment; 0 if the task is a question and an answer."""
        return next((part.turns for part in self.verifier if isinstance(part, EnvironmentVerifier)), 0)

    @property
    def rubric(self) -> str:
        """The judge's rubric; "" if the answers are verified."""
        return next((part.rubric for part in self.verifier if isinstance(part, JudgedVerifier)), "")

    @property
    def graded(self) -> bool:
        """Whether shares of the full reward are paid although the run asks for no partial credit."""
        return all(isinstance(part, GRADING) for part in self.verifier)

    def fill(self, row: dict[str, str], text: str = "") -> str:
        """The prompt of a row, or another text, with the row's cells filled in. A cell is text: what looks like a {column} in
        it stays as it is."""
        return HOLE.sub(lambda hole: row[hole[1]], text or self.prompt)

    def cells(self, row: dict[str, str]) -> str:
        """What distinguishes a row's question from others: its cells without the wording around them."""
        return "\n".join(row[name] for name in dict.fromkeys(HOLE.findall(self.prompt)))


def truth_column(spec: TaskSpec, part: VerifierPart) -> str:
    """The column that holds the right answer for this verifier."""
    return part.column or spec.answer


def right_answer(spec: TaskSpec, row: dict[str, str]) -> str:
    """A right answer of the row: the first if its cell has several, "" if it has none."""
    parts = (
        part for part in spec.verifier if isinstance(part, ExactVerifier) and truth_column(spec, part) == spec.answer
    )
    between = next((part.alternatives for part in parts if part.alternatives), "")
    cell = row.get(spec.answer, "")
    return next(filter(None, map(str.strip, cell.split(between))), "") if between else cell


def needs_truth(part: VerifierPart) -> bool:
    """The verifier compares with a cell of the row."""

    return not isinstance(
        part,
        (
            EnvironmentVerifier,
            FormatVerifier,
            FunctionVerifier,
            JsonSchema,
            JudgedVerifier,
            LengthVerifier,
            RulesVerifier,
        ),
    ) and not (isinstance(part, RegexVerifier) and bool(part.pattern))


def may_have_examples(spec: TaskSpec) -> bool:
    """Its rows can be shown with their right answers: the answer column holds what a completion may be."""

    compared = any(isinstance(part, TRUTHFUL) and truth_column(spec, part) == spec.answer for part in spec.verifier)
    return compared and spec.extract != "tags" and not spec.turns and not spec.rubric


def parse_spec(text: str, origin: str) -> TaskSpec:
    """The spec in a task.toml. Raises BadTask that says what to fix."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise BadTask(f"{origin} is not valid TOML ({str(error)[:200]}). Mend that line.") from error
    return validate_spec(tables, origin)


def validate_spec(tables: object, origin: str) -> TaskSpec:
    """The spec in these tables. origin: named in complaints. Raises BadTask that says what to fix."""
    try:
        spec = msgspec.convert(tables, TaskSpec)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadTask(f"{origin}: {str(error)[:300]}. Tasks to compare it with: sapo-desktop tasks examples") from error
    patterns = PatternChecker()
    for part in spec.verifier:
        if isinstance(part, RegexVerifier) and part.pattern:
            patterns.check(part.pattern, origin)
        if isinstance(part, RulesVerifier):
            try:
                parse_rules(part.rules)
            except ValueError as error:
                raise BadTask(f"{origin}: {error}") from error
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
