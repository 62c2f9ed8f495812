"""Own tasks for tests: folders as a person would write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, build_task
from sapo_swarm.tasks.own.import_rows import Row, RowTable
from sapo_swarm.tasks.own.spec import TaskSpec, Verifier


def write_folder(folder: Path, toml: str, train: Sequence[object], held_out: Sequence[object]) -> Path:
    """A task folder; name = "..." is put in front of the toml."""
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(f'name = "{folder.name}"\n{toml}', "utf-8")
    for name, rows in (("train.jsonl", train), ("heldout.jsonl", held_out)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


def sums(folder: Path, train: int = 80, held_out: int = 20) -> Path:
    """Sums of two numbers, judged as numbers; no sum of train is in held-out."""
    rows = [{"question": f"Calculate {n} + {n * n}.", "answer": n + n * n} for n in range(train + held_out)]
    return write_folder(folder, '[[verifier]]\nkind = "number"\n', rows[:train], rows[train:])


def task_of(
    *parts: Verifier, row: Row | None = None, schema: object = None, fixture: bytes = b"", **spec: object
) -> OwnTask:
    """A task in memory with one row on each side."""
    table = RowTable(rows=[row or {"question": "q", "answer": "a"}], numbers=[1])
    return build_task(TaskSpec(name="t", verifier=parts, **spec), table, table, schema, fixture)  # type: ignore[arg-type]


@contextmanager
def library_in(folder: Path) -> Iterator[Path]:
    """Tasks are looked for in this folder, and nowhere afterwards."""
    library.set_task_folder(folder)
    try:
        yield folder
    finally:
        library.set_task_folder(None)
