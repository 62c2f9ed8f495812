"""Parquet tables, read by pyarrow in a child process: python -P -m sapo_swarm.tasks.own.parquet FILE NAMES ROWS

A few kilobytes may unpack to gigabytes, a damaged file may crash pyarrow, and what the file says of its own sizes may be a
lie. The child has a memory cap and a limit of processor time where the platform has them, and a deadline. It writes the
rows, or one sentence, as JSON to the file ROWS.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sapo_swarm.tasks.own.import_rows import (
    MAX_COLUMNS,
    MAX_FILE,
    MAX_ROWS,
    PARQUET_MEMORY,
    PARQUET_S,
    ParquetResult,
    RowTable,
    by_place,
    cell_text,
    name_columns,
    unfit_reason,
)
from sapo_swarm.tasks.own.spec import BadTask

UNPACKED = 8
"""A file may unpack to this multiple of MAX_FILE."""
AT_ONCE = 64
"""Rows in memory at a time."""
OLDEST = 15
"""Older releases of pyarrow ran code that a file named (CVE-2023-47248)."""


def _read(path: Path, names: Mapping[str, str]) -> RowTable:
    import pyarrow
    import pyarrow.parquet

    if int(pyarrow.__version__.partition(".")[0]) < OLDEST:
        raise BadTask(f"pyarrow {pyarrow.__version__} runs code that a file names; update it, or save the file as CSV.")
    try:
        with path.open("rb") as stream:
            file = pyarrow.parquet.ParquetFile(stream)
            meta = file.metadata
            unpacked = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
            if meta.num_rows > MAX_ROWS or meta.num_columns > MAX_COLUMNS or unpacked > UNPACKED * MAX_FILE:
                raise BadTask(
                    f"{path.name} has {meta.num_rows:,} rows in {meta.num_columns:,} columns, {unpacked:,} bytes unpacked. "
                    f"Up to {MAX_ROWS:,} rows, {MAX_COLUMNS} columns and {UNPACKED * MAX_FILE:,} bytes are read. Use a part "
                    "of it."
                )
            return _batches(file, names)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadTask(f"{path.name} is no Parquet file that can be read ({reason}). Or save it as CSV.") from error


def _batches(file: Any, names: Mapping[str, str]) -> RowTable:
    table, number = RowTable(names=by_place(names)), 0
    table.columns = name_columns(file.schema_arrow.names, table.names)
    for batch in file.iter_batches(batch_size=AT_ONCE):  # few: one dictionary entry may repeat in every row
        for values in zip(*map(_values, batch.columns), strict=True):
            number += 1
            row = {name: cell_text(value) for name, value in zip(table.columns, values, strict=True)}
            if reason := unfit_reason(row):
                table.problem(f"Row {number}: {reason}")
            else:
                table.add(number, row)
    return table


def _values(column: Any) -> list[object]:
    """A column's cells; what Python has no value for (nanoseconds, years beyond 9999, bytes that are no text) by pyarrow's
    own words. Raises pyarrow.ArrowException."""
    import pyarrow

    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        is_text = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
        values = column.cast(pyarrow.large_binary() if is_text else pyarrow.string()).to_pylist()
    return values


def main() -> None:
    """The child."""
    from sapo_backends.child_process import limit_this_process

    path, names, rows = sys.argv[1:]
    limit_this_process(PARQUET_MEMORY, PARQUET_S, UNPACKED * MAX_FILE * 2)
    try:
        result = ParquetResult(_read(Path(path), msgspec.json.decode(names, type=dict[str, str])))
    except BadTask as error:
        result = ParquetResult(RowTable(), str(error))
    Path(rows).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
