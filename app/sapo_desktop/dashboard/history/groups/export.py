"""The groups that fit a filter as JSON lines: the events of the journal, in plain ASCII."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sapo_desktop.dashboard.history.groups.index import NEWEST, GroupIndex
from sapo_desktop.dashboard.history.groups.query import GroupFilter
from sapo_desktop.dashboard.history.groups.sources import GroupSource
from sapo_desktop.errors import AppError
from sapo_desktop.streams import json_line


def whole(source: GroupSource, folder: Path | None, told: Callable[[int], None] = lambda _: None) -> GroupIndex:
    """The index with all groups in it. told: called with how many are in, after each step. Raises JournalError."""
    index = GroupIndex(source, folder)
    try:
        index.changed()
        done = 0
        while index.step():
            done += 1
            told(done)
    except BaseException:
        index.close()
        raise
    return index


def write(source: GroupSource, folder: Path | None, wanted: GroupFilter, path: Path, upto: int = NEWEST) -> int:
    """The same as written(), of an index that is made for it."""
    index = whole(source, folder)
    try:
        return written(index, wanted, path, upto)
    finally:
        index.close()


def written(index: GroupIndex, wanted: GroupFilter, path: Path, upto: int = NEWEST) -> int:
    """Write a new file, this person's only; how many groups are in it. Raises AppError, JournalError; then there is no file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                return sum(file.write(json_line(event) + "\n") > 0 for event in index.every(wanted, upto))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise AppError(f"{path} exists already. Name another file.") from error
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}). Name a file in a folder of your own.") from error
