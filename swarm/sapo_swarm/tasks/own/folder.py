"""A task as a folder on disk, and as bytes that travel to the members of a swarm: both have the same canonical content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sapo_swarm.tasks.own.import_rows import EMPTY, Names, Row, RowTable, decode_text, read_bytes, read_jsonl
from sapo_swarm.tasks.own.row_roles import ask_with_examples, choose_examples, rows_by_level
from sapo_swarm.tasks.own.spec import (
    RUNS_CODE,
    BadTask,
    EnvironmentVerifier,
    FunctionVerifier,
    JsonSchema,
    PatternChecker,
    PythonTests,
    RegexVerifier,
    SqlVerifier,
    TaskSpec,
    needs_truth,
    parse_spec,
    right_answer,
    truth_column,
    unit_tests,
    validate_spec,
)

# A task as a folder: reading, writing, and the SHA-256 over its canonical content that identifies its version.

SPEC, TRAIN, HELD_OUT, ROWS = "task.toml", "train.jsonl", "heldout.jsonl", "rows.jsonl"
SCHEMA, FIXTURE, CODE, ENVIRONMENT = "schema.json", "fixture.sqlite", "reward.py", "environment.py"
MAX_SPEC = 64 * 2**10
MAX_SCHEMA = 64 * 2**10
MAX_FIXTURE = 8 * 2**20
MAX_CODE = 256 * 2**10
PREFIX = "task-"
"""Prefix of the generator in an own task's TaskRef; the beginning of its digest follows."""
DIGITS = 32
HEADER = b"sapo-task-v1\n"
"""Begins the canonical bytes of a task."""
NO_VERSION = ("name", "description", "licence")
"""These fields say nothing about what is asked or how it is judged: changing them makes no new version."""


@dataclass(frozen=True, slots=True)
class OwnTask:
    """A task in memory. digest: SHA-256 in hex of everything that decides questions and verdicts; train_digest: of the same
    without the held-out rows, which identifies the task in a swarm that does not have them.

    problems: sentences on rows that were left out. fixture: the SQLite file's bytes. schema: of schema.json, parsed. code: of
    reward.py or environment.py, never run here. levels: of difficulty, as indices of training rows; {} if there are none.
    examples: training rows that questions may show with their answers, () if the task shows none.
    """

    spec: TaskSpec
    train: tuple[Row, ...]
    held_out: tuple[Row, ...]
    digest: str
    train_digest: str
    schema: object = None
    fixture: bytes = b""
    code: bytes = b""
    problems: tuple[str, ...] = field(default=(), compare=False)
    levels: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    examples: tuple[Row, ...] = field(default=(), compare=False)

    def question(self, row: Row) -> str:
        """The question for a row, after the task's worked examples if it has some."""
        return ask_with_examples(self.spec, self.examples, row) if self.examples else self.spec.fill(row)

    @property
    def code_name(self) -> str:
        """The file that holds the code: reward.py, or environment.py (with the reward function in it, if there is one)."""
        return code_name(self.spec)

    @property
    def generator(self) -> str:
        """The generator of references to this version."""
        return generator_id(self.digest)


def generator_id(digest: str) -> str:
    """The generator of references to the version with this digest."""
    return f"{PREFIX}{digest[:DIGITS]}"


def read_task(folder: Path, need_held_out: bool = True) -> OwnTask:
    """The task in a folder. need_held_out: a task from a swarm may come without held-out rows. Raises BadTask, also if the
    disk refuses."""
    try:
        text = decode_text(read_bytes(folder / SPEC, MAX_SPEC))
        if "\ufffd" in text:
            raise BadTask(f"{SPEC} holds bytes that are no UTF-8 text. Save it as UTF-8.")
        spec = parse_spec(text, SPEC)
        if spec.name != folder.name:
            raise BadTask(f"{SPEC} says name = {spec.name!r}, but the folder is {folder.name!r}. Rename one of them.")
        train, held_out = _sides(folder, spec)
        schema = (
            read_schema(decode_text(read_bytes(folder / SCHEMA, MAX_SCHEMA)))
            if declares_verifier(spec, JsonSchema)
            else None
        )
        fixture = read_bytes(folder / FIXTURE, MAX_FIXTURE) if declares_verifier(spec, SqlVerifier) else b""
        code = (
            read_bytes(folder / code_name(spec), MAX_CODE)
            if declares_verifier(spec, EnvironmentVerifier, FunctionVerifier)
            else b""
        )
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise BadTask(f"Task {folder.name!r} has no {missing} in {folder}.") from error
    except OSError as error:
        raise BadTask(f"Task {folder.name!r} cannot be read ({error.strerror or error}).") from error
    except BadTask as error:
        raise BadTask(f"Task {folder.name!r}: {error}") from error
    return build_task(spec, train, held_out, schema, fixture, code, need_held_out)


def build_task(
    spec: TaskSpec,
    train: RowTable,
    held_out: RowTable,
    schema: object = None,
    fixture: bytes = b"",
    code: bytes = b"",
    need_held_out: bool = True,
) -> OwnTask:
    """A task with these rows; rows that lack what it needs are left out. Raises BadTask if a required side is empty."""
    sides: list[tuple[Row, ...]] = []
    problems: list[str] = []
    patterns = PatternChecker()
    for name, table in ((TRAIN, train), (HELD_OUT, held_out)):
        good, bad = _usable(spec, table, patterns)
        here = [f"{name}: {sentence}" for sentence in [*table.problems, *bad]]
        problems += here
        if not good and (need_held_out or table is train or here):
            first = f" {here[0]}" if here else ""
            raise BadTask(f"Task {spec.name!r} has no usable row in {name}.{first}")
        sides.append(tuple(good))
    whole = content_digest(canonical_content(spec, sides[0], sides[1], schema, fixture, code))
    lean = content_digest(canonical_content(spec, sides[0], (), schema, fixture, code)) if sides[1] else whole
    levels = rows_by_level(spec.difficulty, sides[0])
    shown = choose_examples(spec, sides[0])
    return OwnTask(spec, sides[0], sides[1], whole, lean, schema, fixture, code, tuple(problems), levels, shown)


def canonical_content(
    spec: TaskSpec, train: tuple[Row, ...], held_out: tuple[Row, ...], schema: object, fixture: bytes, code: bytes = b""
) -> list[bytes]:
    """What decides questions and verdicts as canonical bytes, in pieces: each part after its name and length."""
    rules = {k: v for k, v in _chosen(spec).items() if k not in NO_VERSION}
    parts = [
        ("spec", _canonical(rules)),
        ("train", b"\n".join(map(_canonical, train))),
        ("heldout", b"\n".join(map(_canonical, held_out))),
        ("schema", b"" if schema is None else _canonical(schema)),
        ("fixture", fixture),
        *([("code", code)] if code else []),
    ]
    return [HEADER, *(piece for name, part in parts for piece in (f"{name} {len(part)}\n".encode(), part))]


def content_digest(pieces: Iterable[bytes]) -> str:
    """SHA-256 in hex over the pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def write_task(task: OwnTask, folder: Path) -> None:
    """Write the folder, whole or not at all; an existing one is replaced. Raises OSError."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / SPEC).write_text(spec_text(task.spec), "utf-8")
    for name, rows in ((TRAIN, task.train), (HELD_OUT, task.held_out)):
        (partial / name).write_bytes(b"".join(_canonical(row) + b"\n" for row in rows))
    if task.schema is not None:
        (partial / SCHEMA).write_text(json.dumps(task.schema, ensure_ascii=False, indent=1), "utf-8")
    if task.fixture:
        (partial / FIXTURE).write_bytes(task.fixture)
    if task.code:
        (partial / task.code_name).write_bytes(task.code)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)


def spec_text(spec: TaskSpec) -> str:
    """task.toml, without values that equal the default."""
    import tomli_w

    shown: dict[str, Any] = {
        "format": spec.format,
        "name": spec.name,
        "prompt": spec.prompt,
        "answer": spec.answer,
    } | _chosen(spec)
    parts = shown.pop("verifier", [{"kind": "exact"}])
    return tomli_w.dumps(shown) + "".join(f"\n[[verifier]]\n{tomli_w.dumps(part)}" for part in parts)


def _chosen(spec: TaskSpec) -> dict[str, Any]:
    """The fields that differ from their defaults: a field that a later version adds does not change existing tasks."""
    default, fields = msgspec.to_builtins(TaskSpec(name=spec.name)), msgspec.to_builtins(spec)
    chosen = {k: v for k, v in fields.items() if v != default[k]}
    if "verifier" in chosen:
        usual = [msgspec.to_builtins(type(part)()) for part in spec.verifier]
        chosen["verifier"] = [
            {k: v for k, v in part.items() if k == "kind" or v != plain[k]}
            for part, plain in zip(fields["verifier"], usual, strict=True)
        ]
    return chosen


def split_held_out(table: RowTable, spec: TaskSpec) -> tuple[RowTable, RowTable]:
    """Splits one table into (train, held-out) by what a row asks, without the wording around it; by the rule `balanced` also
    by its right answer. Rows that lack what the prompt needs go to the first, to be reported there."""
    from sapo_swarm.tasks.own.row_roles import balanced_places, held_out_places  # NumPy: a coordinator does without

    usable = [place for place, row in enumerate(table.rows) if all(name in row for name in spec.columns)]
    prompts = [spec.cells(table.rows[place]) for place in usable]
    chosen: set[int] = set()
    if prompts and spec.split == "balanced":
        answers = [right_answer(spec, table.rows[place]) for place in usable]
        chosen = {usable[i] for i in balanced_places(prompts, answers, spec.heldout_share)}
    elif prompts:
        chosen = {usable[i] for i in held_out_places(prompts, spec.heldout_share)}
    sides = RowTable(table.columns, problems=table.problems, more=table.more), RowTable(table.columns)
    for place, (number, row) in enumerate(zip(table.numbers, table.rows, strict=True)):
        sides[place in chosen].add(number, row)
    return sides


def _sides(folder: Path, spec: TaskSpec) -> tuple[RowTable, RowTable]:
    if (folder / TRAIN).exists() or not (folder / ROWS).exists():
        train = _rows(folder / TRAIN)
        return train, _rows(folder / HELD_OUT, train.names)
    return split_held_out(_rows(folder / ROWS), spec)


def _rows(path: Path, names: Names = EMPTY) -> RowTable:
    return read_jsonl(decode_text(read_bytes(path)), names)


def _usable(spec: TaskSpec, table: RowTable, patterns: PatternChecker) -> tuple[list[Row], list[str]]:
    """Rows with everything that the prompt and the verifiers read, only those columns; and sentences on the others."""
    good: list[Row] = []
    bad: list[str] = []
    matched = [
        truth_column(spec, part) for part in spec.verifier if isinstance(part, RegexVerifier) and needs_truth(part)
    ]
    tests = [truth_column(spec, part) for part in spec.verifier if isinstance(part, PythonTests)]
    truths = {truth_column(spec, part) for part in spec.verifier if needs_truth(part)}
    for number, row in zip(table.numbers, table.rows, strict=True):
        missing = [name for name in spec.columns if name not in row or (name in truths and not row[name].strip())]
        if missing:
            bad.append(f"Row {number}: {', '.join(missing)} is empty or missing.")
            continue
        if not spec.turns and not spec.cells(row).strip():  # an environment may ask without the row's help
            bad.append(f"Row {number}: its question is empty.")
            continue
        try:
            for name in matched:
                patterns.check(row[name], f"Row {number}")
            for name in tests:
                unit_tests(row[name])
        except BadTask as error:
            bad.append(str(error) if str(error).startswith("Row ") else f"Row {number}: {error}")
            continue
        names = (
            row if declares_verifier(spec, EnvironmentVerifier, FunctionVerifier) else spec.columns
        )  # code is given every column
        good.append({name: row[name] for name in sorted(names)})
    return good, bad


def read_schema(text: str) -> object:
    """The JSON Schema of a task. Raises BadTask."""
    try:
        schema: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"{SCHEMA} is not valid JSON ({error}).") from error
    if not isinstance(schema, dict):
        raise BadTask(f"{SCHEMA} must be a JSON object.")
    patterns = PatternChecker()
    for pattern in _patterns(schema):
        patterns.check(pattern, SCHEMA)
    return schema


def _patterns(schema: object, depth: int = 0) -> list[str]:
    """Every regular expression in a JSON Schema. Raises BadTask if it is nested too deep."""
    if depth > 32:
        raise BadTask(f"{SCHEMA} is nested deeper than 32 levels.")
    if isinstance(schema, list):
        return [p for item in schema for p in _patterns(item, depth + 1)]
    if not isinstance(schema, dict):
        return []
    patterns = [v for k, v in schema.items() if k == "pattern" and isinstance(v, str)]
    if isinstance(named := schema.get("patternProperties"), dict):
        patterns += list(named)
    return patterns + [p for item in schema.values() for p in _patterns(item, depth + 1)]


def code_name(spec: TaskSpec) -> str:
    """The file of a task's code."""
    return ENVIRONMENT if spec.turns else CODE


def declares_verifier(spec: TaskSpec, *kinds: type) -> bool:
    """Whether one of the task's verifiers is of these kinds."""
    return any(isinstance(part, kinds) for part in spec.verifier)


def _canonical(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


# A task as canonical bytes, for members of a swarm: text and declared verifiers, never code.
#
# The task's digest is the SHA-256 of exactly these bytes, so that one number identifies a node's version, and bytes
# that are not the canonical ones are refused. Name, description and licence decide nothing and travel separately.

MAX_BYTES = 8 * 2**20
"""Maximum size of a task that travels."""
_PARTS = {"spec": MAX_SPEC, "train": MAX_BYTES, "heldout": MAX_BYTES, "schema": MAX_SCHEMA, "fixture": MAX_FIXTURE}
_FRAME = re.compile(rb"([a-z]{4,7}) (0|[1-9][0-9]{0,8})\n")


def task_to_bytes(task: OwnTask, held_out: bool) -> bytes:
    """The task's canonical bytes, with or without its held-out rows. Raises BadTask for one that cannot travel."""
    spec = task.spec
    if task.code or declares_verifier(spec, *RUNS_CODE):
        raise BadTask(
            f"Task {spec.name!r} is judged by running Python, and nothing that runs is sent to a swarm. "
            "Declare verifiers in its task.toml instead."
        )
    if spec.rubric:
        raise BadTask(f"Task {spec.name!r} is judged, not verified: groups of it never enter a swarm.")
    rows = task.held_out if held_out else ()
    data = b"".join(canonical_content(spec, task.train, rows, task.schema, task.fixture))
    if len(data) > MAX_BYTES:
        raise BadTask(f"Task {spec.name!r} has {len(data):,} bytes; up to {MAX_BYTES:,} travel. Share fewer rows.")
    task_from_bytes(data, spec.name, spec.description, spec.licence)  # what others would refuse is refused here
    return data


def task_from_bytes(data: bytes, name: str, description: str = "", licence: str = "") -> OwnTask:
    """The task in canonical bytes of unknown origin, read as a folder is. Raises BadTask for anything else."""
    if len(data) > MAX_BYTES:
        raise BadTask(f"Task {name!r} has {len(data):,} bytes; up to {MAX_BYTES:,} are read.")
    try:
        parts = _parts(data)
        spec = validate_spec(
            {**_rules(parts["spec"]), "name": name, "description": description, "licence": licence}, "Task"
        )
        if declares_verifier(spec, *RUNS_CODE):
            raise BadTask("It is judged by running Python, which never comes from a swarm.")
        if spec.rubric:
            raise BadTask("It is judged, not verified; such a task never comes from a swarm.")
        schema = read_schema(_text(parts["schema"])) if declares_verifier(spec, JsonSchema) else None
        fixture = parts["fixture"] if declares_verifier(spec, SqlVerifier) else b""
        task = build_task(
            spec, _rows_travel(parts["train"]), _rows_travel(parts["heldout"]), schema, fixture, need_held_out=False
        )
    except BadTask as error:
        raise BadTask(f"Task {name!r} of the swarm: {error}") from error
    if task.problems:
        raise BadTask(f"Task {name!r} of the swarm: {task.problems[0]}")
    if task.digest != content_digest([data]):
        raise BadTask(
            f"Task {name!r} of the swarm is not in canonical form: its sender has another version of this app."
        )
    return task


def _parts(data: bytes) -> dict[str, bytes]:
    """The parts by name, each once and in order."""
    if not data.startswith(HEADER):
        raise BadTask("These bytes are no task.")
    parts: dict[str, bytes] = {}
    at = len(HEADER)
    for name, limit in _PARTS.items():
        frame = _FRAME.match(data, at)
        if frame is None or frame[1].decode() != name:
            raise BadTask(f"Its part {name!r} is missing.")
        size = int(frame[2])
        if size > limit or frame.end() + size > len(data):
            raise BadTask(f"Its part {name!r} has {size:,} bytes; up to {limit:,} are read.")
        parts[name] = data[frame.end() : frame.end() + size]
        at = frame.end() + size
    if at != len(data):
        raise BadTask("It has parts that this version does not know.")
    return parts


def _rules(part: bytes) -> dict[str, object]:
    try:
        rules = json.loads(_text(part))
    except (ValueError, RecursionError) as error:
        raise BadTask("Its rules are not valid JSON.") from error
    if not isinstance(rules, dict) or set(rules) & set(NO_VERSION):
        raise BadTask("Its rules are not the ones of a task.")
    return rules


def _rows_travel(part: bytes) -> RowTable:
    return read_jsonl(_text(part))


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        raise BadTask("It holds bytes that are no UTF-8 text.") from error
