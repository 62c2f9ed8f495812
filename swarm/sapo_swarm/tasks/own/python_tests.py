"""Unit tests of generated Python, as a row's cell: lines such as `double(4) == 8`. Parsed here, run nowhere near.

What is expected must be a literal: it stays with the verifier, and the process that runs the model's code never sees it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sapo_swarm.tasks.own.errors import BadTask

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
    """The tests of a cell, one a line, with or without `assert`. Raises BadTask with what to mend."""
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
    found = line.test if isinstance(line, ast.Assert) else line.value if isinstance(line, ast.Expr) else None
    if not isinstance(found, ast.Compare) or len(found.ops) != 1 or not isinstance(found.ops[0], ast.Eq):
        raise BadTask(f"Test {ast.unparse(line)[:80]!r} is no comparison. Write it so: double(4) == 8")
    try:
        expected = ast.literal_eval(found.comparators[0])
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadTask(
            f"Test {ast.unparse(line)[:80]!r}: right of == must stand a plain value, such as 8, 'text' or [1, 2]."
        ) from error
    return UnitTest(ast.unparse(found.left), expected)
