"""Worked examples in a question (few-shot prompting): which training rows are shown with their answers, and how they read.

They are chosen by content alone, so that every node of a swarm that has the task asks the same. A held-out row is never one,
and no row is an example in its own question or in that of its near-duplicates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sapo_swarm.tasks.own.rows import Row
from sapo_swarm.tasks.own.spec import HOLE, TaskSpec, right_answer

SPARE = 3
"""Examples that are kept beside those shown: for the questions of rows that are examples themselves."""


def choose_examples(spec: TaskSpec, train: Sequence[Row]) -> tuple[Row, ...]:
    """The rows to show, and some to spare, in their order: short ones, each with another answer as long as there are others."""
    if not spec.shots:
        return ()
    by_size = sorted(train, key=lambda row: (len(spec.cells(row)) + len(right_answer(spec, row)), _place(spec, row)))
    short = sorted(by_size[: max(len(by_size) // 2, spec.shots + SPARE)], key=lambda row: _place(spec, row))
    first: dict[str, Row] = {}
    for row in short:
        first.setdefault(right_answer(spec, row).strip().casefold(), row)
    chosen = list(first.values())
    asked = {spec.cells(row) for row in chosen}
    chosen += [row for row in short if spec.cells(row) not in asked]
    return tuple(chosen[: spec.shots + SPARE])


def ask_with_examples(spec: TaskSpec, examples: Sequence[Row], row: Row) -> str:
    """The row's question behind `spec.shots` worked examples: the instruction once, then the lines with cells for each."""
    shown = [example for example in examples if not _alike(spec, example, row)][: spec.shots]
    before, cells, after = _parts(spec.prompt)
    name = spec.answer.replace("_", " ").strip().capitalize()

    def filled(lines: Sequence[str], of: Row) -> str:
        return spec.fill(of, "\n".join(lines)).strip()

    blocks = [filled(before, row)]
    blocks += [f"Example:\n{filled(cells, each)}\n{name}: {right_answer(spec, each).strip()}" for each in shown]
    now = filled(cells, row)
    blocks += [f"Now:\n{now}" if shown else now, filled(after, row)]
    return "\n\n".join(filter(None, blocks))


def _parts(prompt: str) -> tuple[list[str], list[str], list[str]]:
    """The prompt's lines before the first with a cell in it, from there to the last one with a cell, and the rest."""
    lines = prompt.split("\n")
    places = [place for place, line in enumerate(lines) if HOLE.search(line)]
    first, last = places[0], places[-1] + 1
    return lines[:first], lines[first:last], lines[last:]


def _place(spec: TaskSpec, row: Row) -> bytes:
    return hashlib.sha256(f"{spec.cells(row)}\0{right_answer(spec, row)}".encode("utf-8", "replace")).digest()


def _alike(spec: TaskSpec, one: Row, other: Row) -> bool:
    """They ask the same, or nearly so: the answer of one would give that of the other away."""
    from sapo_swarm.tasks.own.split import clusters  # brings NumPy, which a coordinator does without

    return len(set(clusters([spec.cells(one), spec.cells(other)]))) == 1
