"""The verifier of generated Python: the row's unit tests, run in a process that can do nothing but calculate."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from typing import Any

from sapo_swarm.scoring import python_runner
from sapo_swarm.scoring.declared.case import Case
from sapo_swarm.tasks.own.python_tests import unit_tests
from sapo_swarm.tasks.own.verifiers import PythonTests

_FENCED = re.compile(r"```(?:python|py)?3?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_DEPTH = 32
_MISSING = object()


def passes_tests(_part: PythonTests, case: Case) -> float:
    """The share of tests that pass. Raises RunnerUnavailable, BadTask."""
    tests = unit_tests(case.truth)
    fenced = _FENCED.findall(case.answer)
    code = fenced[-1] if fenced else case.answer
    values = _runner().values(code, [test.expression for test in tests])
    return sum(same(literal(v), t.expected) for v, t in zip(values, tests, strict=False)) / len(tests)


def ready() -> None:
    """Raises RunnerUnavailable where generated Python cannot be contained: told once, not a verdict on every answer."""
    _runner().values("", ["1"])


def _runner() -> python_runner.PythonRunner:
    if python_runner.current is None:
        raise python_runner.RunnerUnavailable(
            "Generated Python is only run on Linux. Where the task is new, start the node anew."
        )
    return python_runner.current


def literal(text: str) -> Any:
    """The value that a repr() says, _MISSING for anything but a plain literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _MISSING


def same(found: Any, expected: Any, depth: int = _DEPTH) -> bool:
    """Equal, of the same kind; floating-point numbers to nine digits. True is no 1, a list no tuple."""
    if depth == 0 or (type(found) is not type(expected) and not _both_numbers(found, expected)):
        return False
    if isinstance(expected, float) or isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12) or found == expected
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(same(a, b, depth - 1) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, dict):
        return _kinds(found) == _kinds(expected) and all(same(found[k], v, depth - 1) for k, v in expected.items())
    if isinstance(expected, set):
        return _kinds(found) == _kinds(expected)
    return bool(found == expected)


def _kinds(members: Iterable[Any]) -> set[Any]:
    """The members of a set, or the keys of a dictionary, each with whether it is a bool: to Python True equals 1."""
    return set(map(_kind, members))


def _kind(value: Any) -> tuple[Any, ...]:
    return tuple(map(_kind, value)) if isinstance(value, tuple) else (isinstance(value, bool), value)


def _both_numbers(one: Any, other: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
