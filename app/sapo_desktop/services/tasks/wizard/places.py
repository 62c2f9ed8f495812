"""Files to make a task from, at the place that the person types. Names only; nothing is opened."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sapo_backends.errors import size_text
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import typed_path
from sapo_desktop.services.tasks import store
from sapo_desktop.services.tasks.wizard.interface import FileChoice
from sapo_swarm.node.clock import format_age

TABLES = frozenset({".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet"})
SPREADSHEETS = frozenset({".xlsx", ".xls", ".xlsm", ".ods", ".numbers"})
MOST = 200
"""Entries of a folder that are shown."""
LOOKED_AT = 20_000
"""Entries of a folder that are scanned."""


def suggest_files(typed: str, now: float) -> tuple[FileChoice, ...]:
    """The folder of the typed path, narrowed to entries that start with its last part: tables, the newest first, then
    folders.

    now: Unix seconds. Raises AppError where there is no such folder, UsageError.
    """
    folder, begin = _split(typed)
    try:
        entries = list(_entries(folder, begin.casefold()))
    except OSError as error:
        raise AppError(f"{folder} cannot be read ({error.strerror}). Type another folder.") from error
    tables = sorted((e for e in entries if not e[2]), key=lambda entry: -entry[1].st_mtime)
    folders = sorted((e for e in entries if e[2]), key=lambda entry: entry[0].name.casefold())
    choices = [
        FileChoice(p.name, str(p), f"{size_text(s.st_size)}, {format_age(now - s.st_mtime)} ago") for p, s, _ in tables
    ]
    up = [FileChoice("..", f"{folder.parent}{os.sep}", "the folder above", True)] if folder.parent != folder else []
    choices += [*up, *(FileChoice(f"{p.name}{os.sep}", f"{p}{os.sep}", "folder", True) for p, _, _ in folders)]
    shipped = [] if typed else [FileChoice(name, name, "an example that ships") for name in store.example_names()]
    return (*choices[: MOST - len(shipped)], *shipped)


def dropped_file(text: str, kinds: Collection[str] = TABLES) -> str:
    """The path of a table, or of a file of these kinds, from what a terminal types when a file is dropped on it: plain,
    quoted, with backslashes before spaces, or as a file:// address. "" where it is of another kind or does not exist."""
    for path in _dropped_paths(text):
        with contextlib.suppress(OSError):
            if path.suffix.casefold() in kinds and path.is_file():
                return str(path)
    return ""


def refused_drop(text: str) -> str:
    """Why a path that was dropped is neither a table nor a model, and what to do; "" where the text is no path."""
    paths = list(_dropped_paths(text))
    if not paths or (text.strip()[0] not in "/~'\"" and not re.match(r"file://|[A-Za-z]:[\\/]", text.strip())):
        return ""
    wanted = "a table (CSV, TSV, JSONL, Parquet) or a model's GGUF file"
    with contextlib.suppress(OSError):
        there = next((path for path in paths if path.exists()), None)
        if there is None:
            return f"There is no file {paths[-1]}."
        if there.suffix.casefold() in SPREADSHEETS:
            return f"{there.name} is a spreadsheet: save it as CSV, and drop that."
        if there.is_dir():
            return f"{there.name} is a folder. Drop {wanted}."
        return f"{there.name} is neither {wanted.replace(' or ', ' nor ')}."
    return f"{paths[-1].name} cannot be looked at. Drop {wanted}."


def _dropped_paths(text: str) -> Iterator[Path]:
    line = text.strip()
    if not line or "\n" in line or len(line) > 4096:
        return
    readings = [line]
    with contextlib.suppress(ValueError):  # an unclosed quote
        readings += shlex.split(line)[:1] if len(shlex.split(line)) == 1 else []
    if line.startswith("file://"):
        readings.append(url2pathname(urlsplit(line).path))
    for reading in readings:
        with contextlib.suppress(UsageError, OSError):
            yield typed_path(reading)


def _split(typed: str) -> tuple[Path, str]:
    """(folder, beginning of the entry's name)."""
    path = typed_path(typed) if typed else Path.cwd()
    if not typed or typed.endswith(("/", os.sep)) or typed == "~":
        return path, ""
    return path.parent, path.name


def _entries(folder: Path, begin: str) -> Iterator[tuple[Path, os.stat_result, bool]]:
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= LOOKED_AT:
                return
            name = entry.name.casefold()
            if not name.startswith(begin) or (name.startswith(".") and not begin.startswith(".")):
                continue
            try:
                is_folder = entry.is_dir()
                if is_folder or Path(name).suffix in TABLES:
                    yield Path(entry.path), entry.stat(), is_folder
            except OSError:  # a dangling link, or gone meanwhile
                continue
