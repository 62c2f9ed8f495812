"""Regular expressions of a task: none that takes for ever to match, and in all no more than is checked in about a second."""

from __future__ import annotations

import re
from typing import Any

from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.verifiers import MAX_PATTERN

_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
MANY = 50
"""Repeats of something that itself repeats: up to here they are quick to match."""
MAX_CLASSES = 10_000
"""What the classes of one pattern may cost, in plain characters: five of all letters of all scripts."""
MAX_WORK = 250_000
"""Of different patterns, in plain characters, of which a millisecond compiles about 300."""
_EACH, _TABLE, _SHARE = 8, 40, 40
"""A pattern and a class beyond U+00FF cost as much as so many plain characters; of a range that many cost as much as one."""


class Patterns:
    """The patterns of one part of a task: equal ones are checked once, and all of them are so many at most."""

    def __init__(self) -> None:
        self._good: set[str] = set()
        self._work = 0

    def check(self, pattern: str, origin: str) -> None:
        """Raises BadTask for a pattern that is no regular expression, that some text takes for ever to match, or that is one too
        many."""
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
    """What compiling the classes costs: one that goes beyond U+00FF fills a table, character by character."""
    found = 0
    for name, value in tree:
        if str(name) != "IN":
            found += sum(map(_classes, _bodies(value)))
            continue
        ends = [(at, at) if str(kind) == "LITERAL" else at for kind, at in value if str(kind) in ("LITERAL", "RANGE")]
        if any(last > 0xFF for _, last in ends):
            found += _TABLE + sum(min(last, 0xFFFF) - min(first, 0xFFFF) for first, last in ends) // _SHARE
    return found


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
