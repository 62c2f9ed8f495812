"""Sentences on a terminal are wrapped at words, not cut inside them at its edge. In a pipe each stays one line, for scripts.

Where a line goes on it is indented below its text, so that lists and columns stay readable. A command at the end of a line goes
whole onto a line of its own, to be copied. One longer than the terminal, like a path, is left to the terminal, which copies it
without a break. JSON is left alone, and so is a status line with control characters.
"""

from __future__ import annotations

import os
import re
import unicodedata
from contextlib import suppress
from typing import Any, TextIO

_COMMAND = re.compile(r"(?:(?<=: )|(?<=See ))sapo-desktop [a-z].*")
"""A command at the end of a line."""
_ONLY_COMMAND = re.compile(r"sapo-desktop [a-z-]+ ")
_MARK = re.compile(r"\s*(?:[-*•] |\d+[.)] |[|] )?")
"""What stands before a line's text: its indentation, the mark of a list, the bar of a quotation."""
_GAP = re.compile(r"\S {2,}(?=\S)")
"""The space between two columns."""


class WrappedStream:
    """A terminal's text stream whose long lines are wrapped. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, wrapped for the present width; returns its length."""
        self._stream.write(wrap_lines(text, _columns(self._stream)))
        return len(text)


def _columns(stream: TextIO) -> int:
    """The terminal's width; COLUMNS goes first, as with argparse."""
    wanted = os.environ.get("COLUMNS", "")
    with suppress(OSError):  # a console of no known size
        return (int(wanted) if wanted.isdecimal() else 0) or os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def wrap_lines(text: str, columns: int) -> str:
    """Each line of the text, wrapped at its spaces to fit into so many columns."""
    if len(text) < columns or "\x1b" in text or "\r" in text:
        return text
    return "\n".join("\n".join(_wrap(line, columns - 1)) for line in text.split("\n"))


def _wrap(line: str, width: int) -> list[str]:
    """The rows of one line, none wider than width where a space allows it."""
    if cell_width(line) <= width or line.startswith("{") or _ONLY_COMMAND.match(line):
        return [line]
    line = line.rstrip()
    whole = _COMMAND.search(line)
    prose, command = (line[: whole.start()].rstrip(), whole.group()) if whole else (line, "")
    indent = " " * _indent(prose, width)
    rows, rest = list[str](), prose
    while cell_width(rest) > width:
        if not (cut := _break_at(rest, width, len(indent) if rows else _text_start(rest))):
            break
        rows.append(rest[:cut].rstrip())
        rest = indent + rest[cut:].lstrip()
    if command and cell_width(rest) + 1 + cell_width(command) <= width:
        return [*rows, f"{rest} {command}"]
    return [*rows, rest, *([indent + command] if command else [])]


def _text_start(line: str) -> int:
    mark = _MARK.match(line)
    return mark.end() if mark else 0


def _indent(line: str, width: int) -> int:
    """Where a line goes on: below its last column that begins in the left half, else below its own text."""
    starts = [gap.end() for gap in _GAP.finditer(line) if cell_width(line[: gap.end()]) <= width // 2]
    return cell_width(line[: starts[-1]]) if starts else min(_text_start(line), width // 2)


def _break_at(line: str, width: int, start: int) -> int:
    """The index of the last space after start up to which the line fits; of the first one where none does; 0 if there is none."""
    used = last = 0
    for index, char in enumerate(line):
        if char == " " and index > start:
            if used > width:
                return last or index
            last = index
        used += cell_width(char)
    return last


def cell_width(text: str) -> int:
    """Columns that the text takes on a terminal: East Asian wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
