"""Reading a table: JSONL, CSV and TSV files become rows of text, and every unusable row becomes a sentence with its line."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import os
import re
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType

import msgspec

from sapo_backends.errors import size_text
from sapo_swarm.tasks.own.spec import BadTask

# Names of columns: the headings in the file, in a form that a prompt can hold.


def column_slug(name: str) -> str:
    """A heading reduced to letters without accents, digits and underscores; "" if it has none of them, as in Chinese."""
    bare = unicodedata.normalize("NFKD", name.strip().replace("ß", "ss"))
    plain = re.sub(r"\W+", "_", re.sub(r"[\u0300-\u036f]", "", bare), flags=re.ASCII).strip("_").lower()
    return (f"column_{plain}" if plain[:1].isdigit() else plain)[:40].rstrip("_")


def name_columns(heads: Sequence[str], names: dict[str, str]) -> list[str]:
    """A unique name for each heading of a row; a heading without a slug is named by its position.

    names: heading -> column, of the file so far; new ones are added. Headings that differ only in case or accents are the
    same column in different rows, and two columns if one row holds both.
    """
    cleaned = [head.strip() for head in heads]
    columns: dict[int, str] = {}
    for place, head in sorted(
        enumerate(cleaned), key=lambda item: (item[1] not in names, item[1] != column_slug(item[1]))
    ):
        plain = column_slug(head)
        name = names.get(head, plain)
        if not name or name in columns.values():
            name = _free(plain, place + 1, {*columns.values(), *names.values()})
        names.setdefault(head, name)
        columns[place] = name
    return [columns[place] for place in range(len(heads))]


def by_place(names: Mapping[str, str]) -> dict[str, str]:
    """The columns named by position: if another file of the same task has them, they are the same."""
    return {head: name for head, name in names.items() if head and not column_slug(head)}


def _free(plain: str, place: int, taken: set[str]) -> str:
    begin = plain[:36] or "column"
    return next(name for number in count(place) if (name := f"{begin}_{number}") not in taken)


# From the lines of a CSV or TSV file to the cells of its rows.

LOOKED_AHEAD = 64 * 2**20
"""Characters searched in vain for the ends of quotes; after that a row is one line."""
LOOKED_AT = 20
"""Rows used to determine the separator."""
csv.field_size_limit(LOOKED_AHEAD)  # a cell that is too long is one cell, and its row is left out with its length
_SAID = re.compile(r"sep=([^\w\s\"]|\t)\Z", re.IGNORECASE)
"""A first line that some programs write for Excel."""


def iter_delimited_rows(text: str, delimiter: str) -> Iterator[list[str] | str]:
    """The cells of each row, or why there are none. delimiter: "" to detect it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if match := _SAID.match(lines[0]):
        delimiter, lines = match[1], lines[1:]
    return _records(lines, delimiter or max(",;\t|", key=lambda mark: _agreement(lines, mark)))


def _agreement(lines: Sequence[str], delimiter: str) -> tuple[int, int]:
    """How many of the first rows have as many cells as the heading (if more than one), and how many cells it has."""
    widths = [len(row) if isinstance(row, list) else 0 for row in islice(_records(lines, delimiter), LOOKED_AT + 1)]
    return (widths.count(widths[0]) if widths[0] > 1 else 0), widths[0]


def _records(lines: Sequence[str], delimiter: str) -> Iterator[list[str] | str]:
    """A quote that is never closed costs its own line, not the rest of the file."""
    at, ahead = 0, LOOKED_AHEAD
    while at < len(lines):
        end = len(lines) if ahead > 0 else at + 1
        rows = csv.reader((f"{lines[n]}\n" for n in range(at, end)), delimiter=delimiter, strict=True)
        try:
            cells: list[str] | str = next(rows)
            at += rows.line_num
        except csv.Error as error:
            closed = rows.line_num == 1 and "unexpected end" not in str(error)
            cells = f"{error}." if closed else "a quote is opened and not closed."
            ahead -= sum(map(len, lines[at : at + rows.line_num]))
            at += 1
        yield cells


# Reading rows: JSONL, CSV and TSV files become rows of text, and every unusable row becomes a sentence with its number.
#
# Nothing is guessed silently and nothing is run; every size is bounded.

MAX_FILE = 32 * 2**20
MAX_ROWS = 100_000
MAX_CELL = 16_384
"""Characters per cell: no model that trains at home reads more."""
MAX_COLUMNS = 64
PARQUET_MEMORY, PARQUET_S, PARQUET_DEADLINE_S = 1_900_000_000, 30, 120.0
"""What the child that reads a Parquet file may take: memory, seconds of processor time and of the clock."""
MAX_PROBLEMS = 1000
"""Sentences that are kept; the rest is counted."""
_LOOKED_AT = 4096
"""Bytes at the beginning by which UTF-16 without a byte-order mark is known."""
WINDOWS = "cp1252"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_JSON = (".jsonl", ".ndjson", ".json")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
Row = dict[str, str]
Names = Mapping[str, str]
"""Heading in the file -> the column."""
EMPTY: Names = MappingProxyType({})


@dataclass(slots=True)
class RowTable:
    """Rows of one file. numbers: the row (of a table) or line (of a JSONL file) that each came from, from 1.

    problems: sentences on rows that were left out. more: problems beyond those kept. heads: the first row of a CSV or TSV
    file, verbatim. names: heading in the file -> the column. encoding: what a file that does not say was assumed to be, ""
    for UTF-8 or UTF-16.
    """

    columns: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    more: int = 0
    encoding: str = ""

    def add(self, number: int, row: Row) -> None:
        """Add a row of the file. Raises BadTask beyond MAX_ROWS."""
        if len(self.rows) >= MAX_ROWS:
            raise BadTask(f"More than {MAX_ROWS:,} rows. Keep the ones that matter most.")
        self.rows.append(row)
        self.numbers.append(number)

    def problem(self, sentence: str) -> None:
        """Note what is wrong; beyond MAX_PROBLEMS only counted."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(sentence)
        else:
            self.more += 1


def read_bytes(path: Path, limit: int = MAX_FILE) -> bytes:
    """A regular file's content: no link, no device, no pipe. Raises BadTask, OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise BadTask(f"{path.name} is a link. Put the file itself there.")
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadTask(f"{path.name} is not a plain file.")
        if status.st_size > limit:
            raise BadTask(f"{path.name} has {status.st_size:,} bytes; up to {limit:,} are read. Use a part of it.")
        return file.read(limit + 1)[:limit]


def decode_text(data: bytes) -> str:
    """Text of a file as programs write them: UTF-8 with or without a byte-order mark, or UTF-16 with one. Undecodable bytes
    become U+FFFD."""
    if data[:2] in _UTF_16:
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def _unmarked_utf_16(data: bytes) -> str:
    """utf-16-le or utf-16-be, where half of every second byte or more is 0 and no other byte is; "" where it is neither."""
    even, odd = data[::2], data[1::2]
    zeros = even.count(0), odd.count(0)
    if not zeros[0] and odd and 2 * zeros[1] >= len(odd):
        return "utf-16-le"
    return "utf-16-be" if not zeros[1] and even and 2 * zeros[0] >= len(even) else ""


def read_text(data: bytes, encoding: str = "") -> tuple[str, str]:
    """The text of a file of any origin, and the encoding assumed if nothing states it: most likely Windows wrote it. A UTF-8
    file with a few broken lines stays UTF-8. encoding: the person's choice. Raises BadTask."""
    if encoding:
        try:
            return data.decode(encoding, "replace").removeprefix("\ufeff"), ""
        except (LookupError, ValueError) as error:
            raise BadTask(
                f"There is no encoding {encoding[:40]!r}. Such as: cp1252, cp1250, mac_roman, utf-16-le."
            ) from error
    if data[:2] in _UTF_16:
        return decode_text(data), ""
    if unmarked := _unmarked_utf_16(data[:_LOOKED_AT]):
        return data.decode(unmarked, "replace"), ""
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig"), ""
    text = decode_text(data)
    broken = ["\ufffd" in line for line in text.split("\n") if not line.isascii()]
    return (text, "") if 2 * sum(broken) <= len(broken) else (data.decode(WINDOWS, "replace"), WINDOWS)


def read_table(path: Path, names: Names = EMPTY, encoding: str = "") -> RowTable:
    """The rows of a .jsonl, .json (a list of objects), .csv, .tsv or .parquet file. names: of another file of the same task;
    encoding: the person's choice. Raises BadTask, OSError."""
    kind = path.suffix.lower()
    if path.is_dir():
        raise BadTask(f"{path} is a folder; name a .csv, .tsv, .jsonl or .parquet file.")
    if kind == ".parquet":
        return _parquet(path, names)
    if kind not in (*_JSON, ".csv", ".tsv", ".txt"):
        raise BadTask(f"{path.name}: only .csv, .tsv, .jsonl and .parquet files are read. Save it as one of them.")
    text, assumed = read_text(read_bytes(path), encoding)
    if not text.strip():
        raise BadTask(f"{path.name} is empty. It needs a row for each question, with its answer.")
    table = read_jsonl(text, names) if kind in _JSON else _delimited(text, "\t" if kind == ".tsv" else "", names)
    table.encoding = assumed
    return table


def read_jsonl(text: str, names: Names = EMPTY) -> RowTable:
    """One JSON object per line; also a file that is one list of objects. names: as for read_table. Raises BadTask."""
    table, used = RowTable(names=by_place(names)), dict[str, None]()
    known: dict[tuple[str, ...], list[str]] = {}
    for number, value in _objects(text, table):
        if not isinstance(value, dict):
            table.problem(f"Row {number}: it is not a JSON object.")
            continue
        if len(value) > MAX_COLUMNS:
            table.problem(f"Row {number}: {len(value):,} columns; up to {MAX_COLUMNS} are read.")
            continue
        keys = tuple(value)
        if keys not in known:
            known[keys] = name_columns(keys, table.names)
            if len(table.names) > MAX_COLUMNS:
                raise BadTask(f"The rows name more than {MAX_COLUMNS} different columns. Use fewer.")
        row = dict(zip(known[keys], map(cell_text, value.values()), strict=True))
        if reason := unfit_reason(row):
            table.problem(f"Row {number}: {reason}")
            continue
        used.update(dict.fromkeys(row))
        table.add(number, row)
    table.columns = list(used)
    return table


def _objects(text: str, table: RowTable) -> Iterator[tuple[int, object]]:
    if text.lstrip()[:1] == "[":
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            where = f"line {error.lineno}, " if isinstance(error, json.JSONDecodeError) else ""
            raise BadTask(f"It begins with [ but is no JSON list: {where}{_short(error)}.") from error
        yield from enumerate(value, 1)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            table.problem(f"Row {number}: this line is not valid JSON: {_short(error)}.")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(error: BaseException) -> str:
    """What is wrong with a line of JSON, and at which of its characters."""
    if isinstance(error, json.JSONDecodeError):
        return f"character {error.colno}, {error.msg[:1].lower()}{error.msg[1:120]}"
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:120]


def cell_text(value: object) -> str:
    """A value as a cell: text unchanged, nothing for null, compact JSON for what JSON has, everything else as text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict | list | tuple | bool | int | float):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def unfit_reason(row: Row) -> str:
    """Why a row cannot be used, "" if it can."""
    for name, value in row.items():
        if len(value) > MAX_CELL:
            return f"column {name} has {len(value):,} characters; up to {MAX_CELL:,} are read."
        if "\ufffd" in value or (not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value)):
            return (
                f"column {name} holds bytes that are no UTF-8 text. Save the file as UTF-8; Excel calls it CSV UTF-8."
            )
        if match := _CONTROL.search(value):
            return f"column {name} holds the control character U+{ord(match[0]):04X}."
    return ""


def _delimited(text: str, delimiter: str, names: Names) -> RowTable:
    table, number = RowTable(names=by_place(names)), 0
    for record in iter_delimited_rows(text, delimiter):
        number += 1
        if number == 1:
            if isinstance(record, str) or not any(head.strip() for head in record):
                raise BadTask("The file's first row must hold the names of the columns.")
            if len(record) > MAX_COLUMNS:
                raise BadTask(f"{len(record):,} columns; up to {MAX_COLUMNS} are read.")
            table.heads, table.columns = record, name_columns(record, table.names)
            continue
        if isinstance(record, str):
            table.problem(f"Row {number}: {record}")
            continue
        if not any(value.strip() for value in record):
            continue
        row = dict(zip(table.columns, record, strict=False))
        reason = unfit_reason(row)
        if len(record) != len(table.columns):
            reason = f"{len(record)} cells under {len(table.columns)} headings. Is a quote or a separator missing?"
        if reason:
            table.problem(f"Row {number}: {reason}")
        else:
            table.add(number, row)
    return table


class ParquetResult(msgspec.Struct):
    """What the child says. sentence: why there is no table."""

    table: RowTable
    sentence: str = ""


def _parquet(path: Path, names: Names) -> RowTable:
    from sapo_backends.child_process import ChildProcess, child_environment, python_command
    from sapo_backends.packages import install_command  # the dashboard imports no engine code

    if getattr(sys, "frozen", False) or importlib.util.find_spec("pyarrow") is None:
        raise BadTask(f"Parquet files need pyarrow: {install_command('pyarrow')}. Or save it as CSV.")
    read_bytes(path)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        command = python_command(
            "sapo_swarm.tasks.own.parquet", os.path.abspath(path), msgspec.json.encode(dict(names)).decode(), str(rows)
        )
        with ChildProcess(command, child_environment({"PYTHONUTF8": "1"}, private=True)) as child:
            if child.ends_within(PARQUET_DEADLINE_S) and child.code == 0 and rows.is_file():
                result = msgspec.json.decode(rows.read_bytes(), type=ParquetResult)
                if result.sentence:
                    raise BadTask(result.sentence)
                return result.table
    raise BadTask(
        f"{path.name} cannot be read: it crashes its reader, or takes over {size_text(PARQUET_MEMORY)} of memory or "
        f"{PARQUET_S} s of processor time. Save it as CSV."
    )
