"""A task as canonical bytes, for members of a swarm: text and verifiers by declaration, never code.

The bytes are exactly what the task's digest is the SHA-256 of, so that one number says which version a node has, and bytes
that are not the canonical ones are refused. Name, description and licence decide nothing and travel beside them.
"""

from __future__ import annotations

import json
import re

from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.folder import (
    HEADER,
    MAX_FIXTURE,
    MAX_SCHEMA,
    MAX_SPEC,
    NO_VERSION,
    OwnTask,
    content,
    content_digest,
    declares,
    make,
    read_schema,
)
from sapo_swarm.tasks.own.rows import Table, read_jsonl
from sapo_swarm.tasks.own.spec import checked
from sapo_swarm.tasks.own.verifiers import RUNS_CODE, JsonSchema, Sql

MAX_BYTES = 8 * 2**20
"""Of a task that travels."""
_PARTS = {"spec": MAX_SPEC, "train": MAX_BYTES, "heldout": MAX_BYTES, "schema": MAX_SCHEMA, "fixture": MAX_FIXTURE}
_FRAME = re.compile(rb"([a-z]{4,7}) (0|[1-9][0-9]{0,8})\n")


def packed(task: OwnTask, held_out: bool) -> bytes:
    """The task's canonical bytes, with its held-out rows or without. Raises BadTask for one that cannot travel."""
    spec = task.spec
    if task.code or declares(spec, *RUNS_CODE):
        raise BadTask(
            f"Task {spec.name!r} is judged by running Python, and nothing that runs is sent to a swarm. "
            "Declare verifiers in its task.toml instead."
        )
    if spec.rubric:
        raise BadTask(f"Task {spec.name!r} is judged, not verified: groups of it never enter a swarm.")
    rows = task.held_out if held_out else ()
    data = b"".join(content(spec, task.train, rows, task.schema, task.fixture))
    if len(data) > MAX_BYTES:
        raise BadTask(f"Task {spec.name!r} has {len(data):,} bytes; up to {MAX_BYTES:,} travel. Share fewer rows.")
    unpacked(data, spec.name, spec.description, spec.licence)  # what others would refuse is refused here
    return data


def unpacked(data: bytes, name: str, description: str = "", licence: str = "") -> OwnTask:
    """The task in canonical bytes of unknown origin, read as a folder is. Raises BadTask for anything else."""
    if len(data) > MAX_BYTES:
        raise BadTask(f"Task {name!r} has {len(data):,} bytes; up to {MAX_BYTES:,} are read.")
    try:
        parts = _parts(data)
        spec = checked({**_rules(parts["spec"]), "name": name, "description": description, "licence": licence}, "Task")
        if declares(spec, *RUNS_CODE):
            raise BadTask("It is judged by running Python, which never comes from a swarm.")
        if spec.rubric:
            raise BadTask("It is judged, not verified; such a task never comes from a swarm.")
        schema = read_schema(_text(parts["schema"])) if declares(spec, JsonSchema) else None
        fixture = parts["fixture"] if declares(spec, Sql) else b""
        task = make(spec, _rows(parts["train"]), _rows(parts["heldout"]), schema, fixture, need_held_out=False)
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
    found: dict[str, bytes] = {}
    at = len(HEADER)
    for name, limit in _PARTS.items():
        frame = _FRAME.match(data, at)
        if frame is None or frame[1].decode() != name:
            raise BadTask(f"Its part {name!r} is missing.")
        size = int(frame[2])
        if size > limit or frame.end() + size > len(data):
            raise BadTask(f"Its part {name!r} has {size:,} bytes; up to {limit:,} are read.")
        found[name] = data[frame.end() : frame.end() + size]
        at = frame.end() + size
    if at != len(data):
        raise BadTask("It has parts that this version does not know.")
    return found


def _rules(part: bytes) -> dict[str, object]:
    try:
        rules = json.loads(_text(part))
    except (ValueError, RecursionError) as error:
        raise BadTask("Its rules are not valid JSON.") from error
    if not isinstance(rules, dict) or set(rules) & set(NO_VERSION):
        raise BadTask("Its rules are not the ones of a task.")
    return rules


def _rows(part: bytes) -> Table:
    return read_jsonl(_text(part))


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        raise BadTask("It holds bytes that are no UTF-8 text.") from error
