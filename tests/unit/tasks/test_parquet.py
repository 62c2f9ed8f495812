"""Parquet files, where pyarrow is there; and what is said where it is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task
from sapo_swarm.tasks.own.import_rows import MAX_CELL, MAX_ROWS, read_table
from sapo_swarm.tasks.own.spec import BadTask, NumberVerifier

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")


def written(path: Path, columns: Mapping[str, object]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@needs_pyarrow
def test_rows_and_kinds_of_cells_are_read_and_bad_rows_named(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
        "Question": ["a?", "b?", None, "x" * (MAX_CELL + 1), "e\x1b?"],
        "Answer": [1.5, 2.0, 3.25, 4.0, 5.0],
        "tags": [["x"], [], None, ["y"], ["z"]],
    }
    table = read_table(written(tmp_path / "rows.parquet", columns))
    assert table.rows == [
        {"question": "a?", "answer": "1.5", "tags": '["x"]'},
        {"question": "b?", "answer": "2.0", "tags": "[]"},
        {"question": "", "answer": "3.25", "tags": ""},
    ]
    assert [line.partition(":")[0] for line in table.problems] == ["Row 4", "Row 5"]


@needs_pyarrow
def test_a_task_is_made_from_it(tmp_path: Path) -> None:
    rows: dict[str, list[object]] = {"question": [f"{n} + 1?" for n in range(90)], "answer": list(range(1, 91))}
    task = draft_task(written(tmp_path / "sums.parquet", rows), ImportOptions()).task
    assert (len(task.train), len(task.held_out)) == (72, 18)
    assert task.spec.verifier == (NumberVerifier(),)


@needs_pyarrow
def test_files_that_are_too_large_or_none_at_all_are_refused_in_a_sentence(tmp_path: Path) -> None:
    many: dict[str, list[object]] = {"q": ["same"] * (MAX_ROWS + 1)}
    with pytest.raises(BadTask, match="100,001 rows in 1 columns"):
        read_table(written(tmp_path / "many.parquet", many))
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(BadTask, match="no Parquet file that can be read"):
        read_table(tmp_path / "junk.parquet")
    whole = written(tmp_path / "cut.parquet", {"q": ["a", "b"]}).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadTask, match="no Parquet file that can be read"):
        read_table(tmp_path / "cut.parquet")


@needs_pyarrow
def test_what_python_has_no_value_for_is_text_or_a_sentence(tmp_path: Path) -> None:
    """Nanoseconds, a year beyond 9999, bytes that are no text, and a time zone that nobody knows."""
    import pyarrow

    text = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, *map(pyarrow.py_buffer, (b"\0\0\0\0\2\0\0\0", b"\xff\xfe"))]
    )
    columns = {
        "nanoseconds": (pyarrow.array([1], pyarrow.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
        "year": (
            pyarrow.array([2**31 - 1], pyarrow.int32()).view(pyarrow.date32()),
            "<value out of range: 2147483647>",
        ),
        "bytes": (text, "holds bytes that are no UTF-8 text"),
    }
    for name, (column, expected) in columns.items():
        table = read_table(written(tmp_path / "rows.parquet", {name: column}))
        assert expected in str([*table.rows, *table.problems])
    with pytest.raises(BadTask, match="is no Parquet file that can be read"):
        read_table(
            written(tmp_path / "r.parquet", {"at": pyarrow.array([1], pyarrow.timestamp("us", tz="Mars/Phobos"))})
        )


@needs_pyarrow
def test_one_long_entry_that_fills_every_row_takes_no_memory_here(tmp_path: Path) -> None:
    """7 kB that unpack to 13 GB: the child's cap."""
    import pyarrow

    cells = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 64, pyarrow.int32()), ["a" * (200 * 2**20)])
    path = written(tmp_path / "bomb.parquet", {"question": cells})
    assert path.stat().st_size < 10_000_000
    with pytest.raises(BadTask, match="Save it as CSV"):
        read_table(path)


def test_without_pyarrow_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadTask, match="pip install pyarrow"):
        read_table(tmp_path / "rows.parquet")
