"""How declared verifiers judge: a text against a row, without running either.

Used in the scorer worker or in the reading process; what runs code (`generated`, `function`) is set up by the worker only.
From a verifier's input, through each kind of verifier, to the complete judgement (`score_declared`).
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import sqlite3
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from types import ModuleType
from typing import Any

import msgspec

from sapo_swarm.scoring import python_runner
from sapo_swarm.scoring.prompts import written_answer, written_once
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own import spec as kinds
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.rules import share_kept
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    ExactVerifier,
    Extract,
    FormatVerifier,
    FunctionVerifier,
    ItemSet,
    JsonEqual,
    JsonSchema,
    LengthVerifier,
    ListVerifier,
    NumberVerifier,
    OrderVerifier,
    PythonTests,
    RegexVerifier,
    SqlVerifier,
    truth_column,
    unit_tests,
)
from sapo_swarm.types import AnswerFormat

# A verifier's input.


@dataclass(frozen=True, slots=True)
class VerifierCase:
    """One completion against one row. answer: what was extracted from text; truth: the cell that counts; row: all cells.
    environment: the task's environment's final reward. answer_format: where a text's answer stands, if it is extracted by
    tags."""

    task: OwnTask
    answer: str
    truth: str
    text: str
    row: Mapping[str, str]
    environment: float = 0.0
    answer_format: AnswerFormat = "tags"


def normalise_text(text: str) -> str:
    """NFKC, white space collapsed and trimmed: how all texts are compared."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def strip_quotes(text: str) -> str:
    """The text without the quotes around it. A single quote mark at its end belongs to it: f' is not f."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


# The verifier of numbers.

MAX_DIGITS = 60
MAX_EXPONENT = 300
MINUS = str.maketrans({"−": "-", "–": "-", "﹣": "-", "\u202f": " ", "\u00a0": " "})
"""How typesetting renders a minus sign and a space between thousands."""
_RAISED = re.compile(r"(?<![^\W\d_])(?<!⁻)[⁰¹²³⁴-⁹₀-₉]")
"""A power or an index that is not part of a unit: NFKC would turn 10² into 102."""
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:[, ]\d{3})+(?:\.\d+)?\Z")
_PLAIN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))(?:[eE]([-+]?\d{1,4}))?\Z")
_FRACTION = re.compile(r"([-+]?\d+) ?/ ?(\d+)\Z")


def number_match(part: NumberVerifier, case: VerifierCase) -> float:
    """1.0 within the tolerance. Computed exactly: 0.1 + 0.2 is 0.3 here. Junk, NaN and infinity are not numbers."""
    answer, unit = parse_measure(case.answer, part)
    truth, truth_unit = parse_measure(case.truth, part)
    if answer is None or truth is None or (truth_unit and unit != truth_unit and (unit or part.need_unit)):
        return 0.0
    allowed = max(Fraction(str(part.abs)), Fraction(str(part.rel)) * abs(truth))
    return float(abs(answer - truth) <= allowed)


def parse_measure(text: str, part: NumberVerifier) -> tuple[Fraction | None, str]:
    """A number (None if the text is none) and the unit behind or before it, "" for none."""
    if _RAISED.search(text):
        return None, ""
    names = sorted(filter(None, map(normalise_text, part.units)), key=len, reverse=True)
    left, unit = normalise_text(text.translate(MINUS)), ""
    if part.need_unit:
        left = _in_case(left, names)
    if not left.endswith(tuple(names)):
        left = left.rstrip(".")
    for name in names:
        if left.endswith(name) and len(left) > len(name):
            left, unit = left[: -len(name)].rstrip(), name
            break
        if left.startswith(name) and len(left) > len(name):
            left, unit = left[len(name) :].lstrip(), name
            break
    if part.decimal == ",":
        left = left.replace(".", " ").replace(",", ".") if "," in left else left.replace(".", ",")
    return _value(left), unit


def _in_case(text: str, names: list[str]) -> str:
    """The text with the unit at its end in the task's spelling: 2 KM is 2 km, unless the task knows both."""
    folded = [name.casefold() for name in names]
    for name, fold in zip(names, folded, strict=True):
        end = text.rstrip(".")
        if end.casefold().endswith(fold) and len(end) > len(name) and not end[: -len(name)][-1:].isalpha():
            return text if end.endswith(name) or folded.count(fold) > 1 else f"{end[: -len(name)]}{name}"
    return text


def _value(text: str) -> Fraction | None:
    if sum(char.isdigit() for char in text) > MAX_DIGITS or not text.isascii():
        return None
    if _GROUPED.match(text):
        text = text.replace(",", "").replace(" ", "")
    if match := _FRACTION.match(text):
        return Fraction(int(match[1]), int(match[2])) if int(match[2]) else None
    match = _PLAIN.match(text)
    if match is None or abs(int(match[2] or 0)) > MAX_EXPONENT:
        return None
    return Fraction(text)


# Where the answer stands in a completion. Linear in the length of the text.

_NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,3})?")


def extract_answer(how: Extract, text: str, answer_format: AnswerFormat = "tags") -> str | None:
    """The answer, stripped, or None if the completion has none. answer_format: of the run, if `how` is "tags"."""
    if how == "tags":
        return written_answer(answer_format, text)
    if how == "whole":
        return text.strip() or None
    if how == "last_line":
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
    if how == "last_number":
        numbers = _NUMBER.findall(text.translate(MINUS))
        return numbers[-1].rstrip(".,") if numbers else None
    return _last_json(text)


def enclose_answer(how: Extract, answer: str, answer_format: AnswerFormat = "tags") -> str:
    """A completion from which this answer is extracted, if the form allows it at all. answer_format: of the run."""
    if how != "tags" or answer_format == "last_line":
        return answer
    if answer_format == "json":
        return json.dumps({"answer": answer}, ensure_ascii=False)
    return f"\\boxed{{{answer}}}" if answer_format == "boxed" else f"<answer>{answer}</answer>"


def _last_json(text: str) -> str | None:
    """The last object or list: from the end back to its opening bracket. Brackets in strings count too, so an answer with
    unbalanced ones in a string gives none."""
    end = max(text.rfind("}"), text.rfind("]"))
    depth = 0
    for place in range(end, -1, -1):
        if text[place] in "}]":
            depth += 1
        elif text[place] in "{[":
            depth -= 1
            if depth == 0:
                return text[place : end + 1]
    return None


# Verifiers of text: exact, choice, regex, length, format.

MATCHED = 2000
"""Characters of an answer that a pattern is matched against: longer ones do not match."""
_AROUND = "()[]{}.: "


def exact_match(part: ExactVerifier, case: VerifierCase) -> float:
    """1.0 for the truth or one of its alternatives, after normalisation."""

    def form(text: str) -> str:
        return normalise_text(text) if part.case else normalise_text(text).casefold()

    truths = case.truth.split(part.alternatives) if part.alternatives else [case.truth]
    return float(form(case.answer) in {form(truth) for truth in truths if truth.strip()})


def choice_match(part: ChoiceVerifier, case: VerifierCase) -> float:
    """1.0 for the truth's option alone; two options in one answer count as none."""
    chosen = normalised_label(case.answer)
    if part.options and chosen not in {normalised_label(option) for option in part.options}:
        return 0.0
    return float(bool(chosen) and chosen == normalised_label(case.truth))


def normalised_label(text: str) -> str:
    """An option's name without brackets, surrounding quotes, a full stop and case."""
    return strip_quotes(normalise_text(text).casefold().strip(_AROUND)).strip(_AROUND)


def regex_match(part: RegexVerifier, case: VerifierCase) -> float:
    """1.0 if the whole answer matches. The worker's deadline ends a match that does not terminate."""
    if len(case.answer) > MATCHED:
        return 0.0
    pattern = re.compile(part.pattern or case.truth, 0 if part.case else re.IGNORECASE)
    return float(pattern.fullmatch(case.answer) is not None)


def length_match(part: LengthVerifier, case: VerifierCase) -> float:
    """1.0 inside the limits."""
    return float(part.least <= len(case.text if part.whole else case.answer) <= part.most)


def format_match(part: FormatVerifier, case: VerifierCase) -> float:
    """1.0 for a single answer with the required beginning and end, and nothing behind it."""
    if not (case.answer.startswith(part.starts) and case.answer.endswith(part.ends)):
        return 0.0
    if not part.only:
        return 1.0
    if case.task.spec.extract == "tags":
        return float(written_once(case.answer_format, case.text))
    return float(case.text.rstrip().endswith(case.answer))


# Verifiers of JSON: json_equal, json_schema.

MAX_DEPTH = 32
_MISSING = object()
_DATA = ("const", "enum", "default", "examples")
"""Keywords of JSON Schema whose values are not schemas."""


def parse_json(text: str) -> Any:
    """JSON as in the RFC: no NaN, no repeated key, at most MAX_DEPTH deep. Raises ValueError, RecursionError."""
    value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    if _deeper(value, MAX_DEPTH):
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice")
    return members


def _deeper(value: Any, left: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_deeper(item, left - 1) for item in inner)


def json_equal(part: JsonEqual, case: VerifierCase) -> float:
    """1.0 for an equal value, else the share of leaves that agree; 0 if either is not JSON."""
    try:
        mine, truth = parse_json(case.answer), parse_json(case.truth)
    except (ValueError, RecursionError):
        return 0.0
    found, wanted = _leaves(mine, part.ordered), _leaves(truth, part.ordered)
    same = sum(_same(found.get(path, _MISSING), value, part.abs) for path, value in wanted.items())
    return same / max(len(found), len(wanted))


def _leaves(value: Any, ordered: bool, path: str = "") -> dict[str, Any]:
    """Path -> value of everything that is not a container, and of empty containers."""
    if isinstance(value, dict) and value:
        return {p: v for k, item in value.items() for p, v in _leaves(item, ordered, f"{path}/{json.dumps(k)}").items()}
    if isinstance(value, list) and value:
        items = value if ordered else sorted(value, key=_place)
        return {p: v for i, item in enumerate(items) for p, v in _leaves(item, ordered, f"{path}#{i}").items()}
    return {path: value}


def _place(value: Any) -> tuple[int, Any]:
    """Sort key of an item in a list whose order does not count: by kind, then by value, so that 9.99 is paired with 10."""
    if isinstance(value, dict):
        return 5, sorted((key, _place(item)) for key, item in value.items())
    if isinstance(value, list):
        return 4, sorted(map(_place, value))
    if isinstance(value, str):
        return 3, value
    return (0, 0) if value is None else (1 if isinstance(value, bool) else 2, value)


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if one is _MISSING or isinstance(one, bool) is not isinstance(other, bool):
        return False
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if one == other:
            return True
        return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= tolerance
    return type(one) is type(other) and one == other


def fits_schema(_part: JsonSchema, case: VerifierCase) -> float:
    """1.0 for JSON that the folder's schema allows. References outside the schema are errors: nothing is fetched."""
    try:
        value = parse_json(case.answer)
    except (ValueError, RecursionError):
        return 0.0
    return float(_validator(msgspec.json.encode(case.task.schema)).is_valid(value))


def require_sound_schema(schema: object) -> None:
    """Raises BadTask if no answer could ever fit: reported once, instead of a verdict on every answer."""
    from referencing.exceptions import Unresolvable

    validator, answers = _validator(msgspec.json.encode(schema)), ("null", "0", '""', "[]", "{}")
    try:
        for answer in answers:
            validator.is_valid(parse_json(answer))
    except RecursionError as error:
        raise BadTask("schema.json: a $ref in it leads back to itself, so no answer could ever be judged.") from error
    except Unresolvable as error:
        raise BadTask(f"schema.json: there is no {error.ref[:200]!r} in it, and nothing is fetched.") from error


@lru_cache(maxsize=8)
def _validator(schema: bytes) -> Any:
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    read, reference = msgspec.json.decode(schema), ""
    try:
        jsonschema.Draft202012Validator.check_schema(read)
        resource = DRAFT202012.create_resource(read)
        resolver = Registry().with_resource(resource.id() or "", resource).crawl().resolver(resource.id() or "")
        for reference in _references(read):
            resolver.lookup(reference)
    except jsonschema.SchemaError as error:
        raise BadTask(f"schema.json: {error.message[:300]}") from error
    except Unresolvable as error:
        raise BadTask(f"schema.json: there is no {reference[:200]!r} in it, and nothing is fetched.") from error
    return jsonschema.Draft202012Validator(read, registry=Registry())


def _references(schema: Any) -> Iterator[str]:
    """Every $ref in a schema, except those in data, or in a part that has an $id: they are relative to something else."""
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    if isinstance(schema, dict):
        for name, item in schema.items():
            if name == "$ref" and isinstance(item, str):
                yield item
            elif name not in _DATA and not (isinstance(item, dict) and "$id" in item):
                yield from _references(item)


# Verifiers of several items: list, set, order.

MAX_ITEMS = 200
"""Maximum number of items in an answer; one with more is wrong."""


def list_equal(part: ListVerifier, case: VerifierCase) -> float:
    """Share of positions that agree, out of the longer list."""
    mine, theirs = split_items(case.answer, part.separator), split_items(case.truth, part.separator)
    if not theirs or len(mine) > MAX_ITEMS:
        return 0.0
    return sum(a == b for a, b in zip(mine, theirs, strict=False)) / max(len(mine), len(theirs))


def set_overlap(part: ItemSet, case: VerifierCase) -> float:
    """Shared items over all items (Jaccard)."""
    mine, theirs = set(split_items(case.answer, part.separator)), set(split_items(case.truth, part.separator))
    if not theirs or len(mine) > MAX_ITEMS:
        return 0.0
    return len(mine & theirs) / len(mine | theirs)


def order_agreement(part: OrderVerifier, case: VerifierCase) -> float:
    """Share of pairs in the truth's order; 0 if the items are not exactly the truth's, each once."""
    mine, theirs = split_items(case.answer, part.separator), split_items(case.truth, part.separator)
    if not theirs or len(mine) > MAX_ITEMS or sorted(mine) != sorted(set(theirs)):
        return 0.0
    place = {item: number for number, item in enumerate(mine)}
    pairs = list(combinations(dict.fromkeys(theirs), 2))
    return sum(place[a] < place[b] for a, b in pairs) / len(pairs) if pairs else 1.0


def split_items(text: str, separator: str) -> list[str]:
    """Items of a list as people write it, or of a JSON list."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        try:
            items = parse_json(inner)
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list):
            return [_item(v if isinstance(v, str) else json.dumps(v, sort_keys=True)) for v in items]
        inner = inner[1:-1]
    return [item for part in inner.split(separator) if (item := _item(part))]


def _item(text: str) -> str:
    return strip_quotes(normalise_text(text)).casefold()


# The verifier of SQL: both queries run on a copy of the fixture in memory, read only, with limits on time, rows and
# size.

MAX_ROWS = 1000
MAX_RESULT = 2**21
"""Bytes of a result's values in memory: a query of 100 letters can produce a gigabyte of them."""
MAX_STEPS = 2_000_000
"""Instructions of SQLite's virtual machine per query: some tens of milliseconds."""
_STEP = 10_000
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_BIG = 2**16
"""Bytes of a value: a query sorts thousands of them within MAX_STEPS."""
_WAL, _ROLLBACK = b"\2\2", b"\1\1"
"""Bytes 18 and 19 of a database whose journal is a write-ahead log, or a rollback journal (sqlite.org/fileformat2.html)."""
_DENIED = frozenset({"random", "randomblob", "zeroblob", "printf", "format", "load_extension", "fts3_tokenizer"})
"""Functions that make a verdict depend on chance, or megabytes out of a few letters."""


def same_result(part: SqlVerifier, case: VerifierCase) -> float:
    """1.0 if the answer returns the truth's rows. Column names do not count; a truth without rows is never matched."""
    expected = _wanted(case.task.fixture, case.truth)
    if not expected:
        return 0.0
    result = _ask(case.task.fixture, case.answer)
    if result is None:
        return 0.0
    return float(result == expected if part.ordered else Counter(result) == Counter(expected))


@lru_cache(maxsize=32)
def _wanted(fixture: bytes, truth: str) -> tuple[Sequence[Any], ...] | None:
    return _ask(fixture, truth)


def _ask(fixture: bytes, query: str) -> tuple[Sequence[Any], ...] | None:
    """The rows of one query, None if it fails or gives more than MAX_ROWS or MAX_RESULT."""
    connection = _database(fixture)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += _STEP
        return steps > MAX_STEPS

    connection.set_progress_handler(count, _STEP)
    try:
        rows, size = [], 0
        for row in connection.execute(query):
            rows.append(row)
            size += sum(map(sys.getsizeof, row))
            if len(rows) > MAX_ROWS or size > MAX_RESULT:
                return None
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        connection.set_progress_handler(None, 0)
    return tuple(rows)


class _Closing(sqlite3.Connection):
    """Closes itself when the cache drops it."""

    def __del__(self) -> None:
        self.close()


@lru_cache(maxsize=4)
def _database(fixture: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=_Closing)
    if fixture[18:20] == _WAL:  # without a file no write-ahead log can be opened
        fixture = fixture[:18] + _ROLLBACK + fixture[20:]
    connection.deserialize(fixture)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, _BIG),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 8192),
        (sqlite3.SQLITE_LIMIT_COLUMN, 64),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 64),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 8),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
    ):
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorise)
    return connection


def _authorise(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    """Allows only reading and calculating."""
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _DENIED):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


# The verifier of generated Python: the row's unit tests, run in a process that can only calculate.

_FENCED = re.compile(r"```(?:python|py)?3?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_DEPTH = 32


def passes_tests(_part: PythonTests, case: VerifierCase) -> float:
    """The share of tests that pass. Raises RunnerUnavailable, BadTask."""
    tests = unit_tests(case.truth)
    fenced = _FENCED.findall(case.answer)
    code = fenced[-1] if fenced else case.answer
    values = _runner().values(code, [test.expression for test in tests])
    return sum(same_value(literal_value(v), t.expected) for v, t in zip(values, tests, strict=False)) / len(tests)


def require_runner() -> None:
    """Raises RunnerUnavailable if generated Python cannot be contained: reported once, instead of a verdict on every answer."""
    _runner().values("", ["1"])


def _runner() -> python_runner.PythonRunner:
    if python_runner.current is None:
        raise python_runner.RunnerUnavailable(
            "Generated Python is only run on Linux. Where the task is new, start the node anew."
        )
    return python_runner.current


def literal_value(text: str) -> Any:
    """The value of a repr(), _MISSING for anything but a plain literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _MISSING


def same_value(found: Any, expected: Any, depth: int = _DEPTH) -> bool:
    """Equal and of the same kind; floating-point numbers to nine digits. True is not 1, a list is not a tuple."""
    if depth == 0 or (type(found) is not type(expected) and not _both_numbers(found, expected)):
        return False
    if isinstance(expected, float) or isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12) or found == expected
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(
            same_value(a, b, depth - 1) for a, b in zip(found, expected, strict=True)
        )
    if isinstance(expected, dict):
        return _kinds(found) == _kinds(expected) and all(
            same_value(found[k], v, depth - 1) for k, v in expected.items()
        )
    if isinstance(expected, set):
        return _kinds(found) == _kinds(expected)
    return bool(found == expected)


def _kinds(members: Iterable[Any]) -> set[Any]:
    """The members of a set, or the keys of a dictionary, each with whether it is a bool: in Python True equals 1."""
    return set(map(_kind, members))


def _kind(value: Any) -> tuple[Any, ...]:
    return tuple(map(_kind, value)) if isinstance(value, tuple) else (isinstance(value, bool), value)


def _both_numbers(one: Any, other: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))


# The person's own reward function, in TRL's shape: def reward(prompts, completions, **columns) -> list[float].
#
# The only verifier that runs code. The code is the person's: it is in their task's reward.py, and runs only after they
# said yes to exactly this file (library.is_code_allowed), only in the limited worker, and never if it came from a
# swarm.

Reward = Callable[..., Any]


class NoReward(ValueError):
    """reward.py gives no reward: there is no such function, it fails, or it returns something other than a number."""


def own_function(_part: FunctionVerifier, case: VerifierCase) -> float:
    """The function's reward for one completion, clipped to [0, 1]. Raises NoReward, and whatever the function raises."""
    rewards = load_reward(case.task.code)(
        prompts=[case.task.spec.fill(dict(case.row))],
        completions=[case.text],
        **{name: [cell] for name, cell in case.row.items() if name not in ("prompts", "completions")},
    )
    if len(rewards) != 1 or not math.isfinite(float(rewards[0])):
        raise NoReward(f"It gave {str(rewards)[:80]} for one completion.")
    return min(1.0, max(0.0, float(rewards[0])))


@lru_cache(maxsize=4)
def load_reward(code: bytes) -> Reward:
    """The function in this file. Raises NoReward, and whatever the file raises; PermissionError without the person's yes."""
    return find_reward(vars(execute_file(code, "reward.py")))


@lru_cache(maxsize=4)
def execute_file(code: bytes, name: str) -> ModuleType:
    """The file as a module. Raises whatever it raises; PermissionError without the person's yes."""
    if not library.is_code_allowed(code):
        raise PermissionError(f"Nobody said yes to this {name}.")
    module = sys.modules[f"own_{name}"] = ModuleType(f"own_{name}")  # dataclasses look up their module
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  (the person's own file, after their yes, in the worker)
    return module


def find_reward(names: Mapping[str, Any]) -> Reward:
    """`reward`, or the only function of the file that takes prompts and completions. Raises NoReward."""
    if callable(names.get("reward")):
        return names["reward"]  # type: ignore[no-any-return]
    fits = [
        value
        for name, value in names.items()
        if inspect.isfunction(value) and not name.startswith("_") and _fits(value)
    ]
    if len(fits) != 1:
        raise NoReward(
            f"reward.py has {len(fits)} functions that take prompts and completions; name one of them reward."
        )
    return fits[0]


def _fits(function: Any) -> bool:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return "completions" in parameters and open_ended


# A completion against a row of an own task: extraction, then every declared verifier.

JUDGES: dict[type[kinds.VerifierPart], Callable[[Any, VerifierCase], float]] = {
    kinds.ExactVerifier: exact_match,
    kinds.NumberVerifier: number_match,
    kinds.ChoiceVerifier: choice_match,
    kinds.ListVerifier: list_equal,
    kinds.ItemSet: set_overlap,
    kinds.OrderVerifier: order_agreement,
    kinds.RegexVerifier: regex_match,
    kinds.JsonSchema: fits_schema,
    kinds.JsonEqual: json_equal,
    kinds.SqlVerifier: same_result,
    kinds.LengthVerifier: length_match,
    kinds.FormatVerifier: format_match,
    kinds.RulesVerifier: lambda part, case: share_kept(part.rules, case.answer, case.row),
    kinds.PythonTests: passes_tests,
    kinds.FunctionVerifier: own_function,
    kinds.EnvironmentVerifier: lambda _part, case: case.environment,
    kinds.JudgedVerifier: lambda _part, _case: 0.0,  # only its judge decides, outside the worker: Scorer.score_local
}


def score_declared(
    task: OwnTask,
    row: Mapping[str, str],
    answer: str,
    text: str,
    environment: float = 0.0,
    answer_format: AnswerFormat = "tags",
) -> float:
    """The weighted mean of all parts, in [0, 1]; exactly 1.0 if every part gives 1. May raise what a part raises."""
    total = weights = 0.0
    for part in task.spec.verifier:
        truth = row.get(truth_column(task.spec, part), "")
        case = VerifierCase(task, answer, truth, text, row, environment, answer_format)
        total += part.weight * JUDGES[type(part)](part, case)
        weights += part.weight
    return total / weights
