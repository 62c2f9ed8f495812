"""Verifiers of JSON: json_equal, json_schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from sapo_swarm.scoring.declared.case import Case
from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.verifiers import JsonEqual, JsonSchema

MAX_DEPTH = 32
_MISSING = object()
_DATA = ("const", "enum", "default", "examples")
"""Keywords of JSON Schema whose values are no schemas."""


def loads(text: str) -> Any:
    """JSON as the RFC has it: no NaN, no key twice, at most MAX_DEPTH deep. Raises ValueError, RecursionError."""
    found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    if _deeper(found, MAX_DEPTH):
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _deeper(value: Any, left: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_deeper(item, left - 1) for item in inner)


def equal(part: JsonEqual, case: Case) -> float:
    """1.0 for an equal value, else the share of leaves that agree; 0 where either is no JSON."""
    try:
        mine, truth = loads(case.answer), loads(case.truth)
    except (ValueError, RecursionError):
        return 0.0
    found, wanted = _leaves(mine, part.ordered), _leaves(truth, part.ordered)
    same = sum(_same(found.get(path, _MISSING), value, part.abs) for path, value in wanted.items())
    return same / max(len(found), len(wanted))


def _leaves(value: Any, ordered: bool, path: str = "") -> dict[str, Any]:
    """Path -> value of everything that is no container, and of empty ones."""
    if isinstance(value, dict) and value:
        return {p: v for k, item in value.items() for p, v in _leaves(item, ordered, f"{path}/{json.dumps(k)}").items()}
    if isinstance(value, list) and value:
        items = value if ordered else sorted(value, key=_place)
        return {p: v for i, item in enumerate(items) for p, v in _leaves(item, ordered, f"{path}#{i}").items()}
    return {path: value}


def _place(value: Any) -> tuple[int, Any]:
    """Where an item stands in a list whose order does not count: by kind, then by value, so that 9.99 stands where 10 does."""
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


def fits_schema(_part: JsonSchema, case: Case) -> float:
    """1.0 for JSON that the folder's schema allows. References outside the schema are errors: nothing is fetched."""
    try:
        value = loads(case.answer)
    except (ValueError, RecursionError):
        return 0.0
    return float(_validator(msgspec.json.encode(case.task.schema)).is_valid(value))


def ready(schema: object) -> None:
    """Raises BadTask where no answer could ever fit: told once, not a verdict on every answer."""
    _validator(msgspec.json.encode(schema))


@lru_cache(maxsize=8)
def _validator(schema: bytes) -> Any:
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    read, reference = msgspec.json.decode(schema), ""
    try:
        jsonschema.Draft202012Validator.check_schema(read)
        found = DRAFT202012.create_resource(read)
        resolver = Registry().with_resource(found.id() or "", found).crawl().resolver(found.id() or "")
        for reference in _references(read):
            resolver.lookup(reference)
    except jsonschema.SchemaError as error:
        raise BadTask(f"schema.json: {error.message[:300]}") from error
    except Unresolvable as error:
        raise BadTask(f"schema.json: there is no {reference[:200]!r} in it, and nothing is fetched.") from error
    return jsonschema.Draft202012Validator(read, registry=Registry())


def _references(schema: Any) -> Iterator[str]:
    """Every $ref in a schema, but for those in what is data, or in a part that has an $id: they begin elsewhere."""
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    if isinstance(schema, dict):
        for name, item in schema.items():
            if name == "$ref" and isinstance(item, str):
                yield item
            elif name not in _DATA and not (isinstance(item, dict) and "$id" in item):
                yield from _references(item)
