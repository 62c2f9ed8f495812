"""From the lines of a CSV or TSV file to the cells of its rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice

LOOKED_AHEAD = 64 * 2**20
"""Characters in which the ends of quotes are looked for in vain; after them a row is one line."""
LOOKED_AT = 20
"""Rows that tell the separator."""
csv.field_size_limit(LOOKED_AHEAD)  # a cell that is too long is one cell, and its row is left out with its length
_SAID = re.compile(r"sep=([^\w\s\"]|\t)\Z", re.IGNORECASE)
"""A first line that some programs write for Excel."""


def delimited(text: str, delimiter: str) -> Iterator[list[str] | str]:
    """The cells of each row, or why there are none. delimiter: "" to find it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if said := _SAID.match(lines[0]):
        delimiter, lines = said[1], lines[1:]
    return _records(lines, delimiter or max(",;\t|", key=lambda mark: _agreement(lines, mark)))


def _agreement(lines: Sequence[str], delimiter: str) -> tuple[int, int]:
    """How many of the first rows have as many cells as the heading, if more than one; and how many it has."""
    widths = [len(row) if isinstance(row, list) else 0 for row in islice(_records(lines, delimiter), LOOKED_AT + 1)]
    return (widths.count(widths[0]) if widths[0] > 1 else 0), widths[0]


def _records(lines: Sequence[str], delimiter: str) -> Iterator[list[str] | str]:
    """A quote that is never closed costs its own line, not the rest of the file."""
    at, ahead = 0, LOOKED_AHEAD
    while at < len(lines):
        end = len(lines) if ahead > 0 else at + 1
        rows = csv.reader((f"{lines[n]}\n" for n in range(at, end)), delimiter=delimiter, strict=True)
        try:
            found: list[str] | str = next(rows)
            at += rows.line_num
        except csv.Error as error:
            closed = rows.line_num == 1 and "unexpected end" not in str(error)
            found = f"{error}." if closed else "a quote is opened and not closed."
            ahead -= sum(map(len, lines[at : at + rows.line_num]))
            at += 1
        yield found
