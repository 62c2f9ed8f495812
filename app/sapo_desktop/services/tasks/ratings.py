"""Thumbs up and down on answers in the chat: rows of a file that a task can be made from; they are used for nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_swarm.scoring.prompts import after_reasoning, extract_answer, written_answer
from sapo_swarm.tasks.own.import_rows import (
    MAX_CELL,
    MAX_FILE,
    MAX_ROWS,
    Row,
    RowTable,
    decode_text,
    read_bytes,
    read_jsonl,
    read_table,
)
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import AnswerFormat
from sapo_swarm.whole_file import write_atomically

GOOD, BAD = "good", "bad"
COLUMN = "rating"
COLUMNS = ("question", "answer", COLUMN)


def rated_file(home: Home, model: str) -> Path:
    """The file with the ratings of a model's answers."""
    return home.data / "ratings" / f"{model}.jsonl"


def rated_files(home: Home) -> list[Path]:
    """Every file of ratings, the newest first."""
    return sorted((home.data / "ratings").glob("*.jsonl"), key=lambda path: -path.stat().st_mtime)


def save_rating(
    home: Home, model: str, question: str, text: str, good: bool, answer_format: AnswerFormat = "tags"
) -> tuple[int, int]:
    """Store a rating, replacing an earlier one of the same answer. Returns the numbers (good, bad) now. Raises AppError.

    text: the whole answer as the model wrote it; the row's answer is the part that answer_format marks, else the part in
    tags, else everything after the reasoning.
    """
    path = rated_file(home, model)
    visible = after_reasoning(text) or text
    answer = (written_answer(answer_format, visible) or extract_answer(visible) or visible).strip()
    row = {"question": question[:MAX_CELL], "answer": answer[:MAX_CELL], COLUMN: GOOD if good else BAD}
    try:
        rows = [
            old for old in read_ratings(path) if (old["question"], old["answer"]) != (row["question"], row["answer"])
        ]
        rows = [*rows, row][-MAX_ROWS:]
        write_atomically(path, "".join(json.dumps(rated, ensure_ascii=False) + "\n" for rated in rows))
    except (OSError, BadTask) as error:
        raise AppError(f"The rating is not kept: {path.name}: {error}") from error
    count = sum(rated[COLUMN] == GOOD for rated in rows)
    return count, len(rows) - count


def read_ratings(path: Path) -> list[Row]:
    """The ratings so far; rows that somebody broke by hand are dropped. Raises BadTask, OSError."""
    if not path.exists():
        return []
    rows = read_jsonl(decode_text(read_bytes(path, MAX_FILE))).rows
    return [row for row in rows if {*COLUMNS} <= row.keys()]


def of_file(path: Path, encoding: str = "") -> RowTable:
    """Ratings that the person wrote, in any file that tasks are made from; "" in rows that lack one of the columns. encoding:
    as for read_table. Raises UsageError, BadTask, OSError."""
    table = read_table(path, encoding=encoding)
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UsageError(f"{path.name} has no column {missing[0]!r}. It has: {', '.join(table.columns) or 'none'}.")
    ratings = (row[COLUMN].strip().lower() if row.keys() >= {*COLUMNS} else "" for row in table.rows)
    return replace(table, rows=[{**row, COLUMN: rating} for row, rating in zip(table.rows, ratings, strict=True)])


def without_bad(table: RowTable) -> RowTable:
    """A table of ratings, in the chat's format, without the answers rated bad, which are reported; any other table
    unchanged."""
    if {*table.columns} != {*COLUMNS} or {row.get(COLUMN) for row in table.rows} - {GOOD, BAD}:
        return table
    good = replace(table, rows=[], numbers=[], problems=list(table.problems))
    for number, row in zip(table.numbers, table.rows, strict=True):
        if row[COLUMN] == GOOD:
            good.add(number, row)
        else:
            good.problem(f"Row {number}: you rated this answer bad.")
    return good
