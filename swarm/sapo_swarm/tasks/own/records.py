"""From the lines of a CSV or TSV file to the cells of its rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice

MAX_HEIGHT = 40
"""Lines that one row of a table may have."""
MAX_UNCLOSED = 100
"""Quotes without an end that are looked for in so many lines; after them a row is one line."""
LOOKED_AT = 20
"""Rows that tell the separator."""
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
    at, unclosed = 0, 0
    while at < len(lines):
        tallest = MAX_HEIGHT if unclosed < MAX_UNCLOSED else 1
        for height in range(1, min(tallest, len(lines) - at) + 1):
            found = _cells(lines[at : at + height], delimiter)
            if found is not None:
                yield found
                at += height
                break
        else:
            yield "a quote is opened and not closed."
            at, unclosed = at + 1, unclosed + 1


def _cells(lines: Sequence[str], delimiter: str) -> list[str] | str | None:
    """The cells of a row that runs over these lines; None where it is not at its end, a sentence where it is broken."""
    try:
        found = list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter, strict=True))
    except csv.Error as error:
        return None if len(lines) > 1 or "unexpected end" in str(error) else f"{error}."
    return found[0] if found else []
