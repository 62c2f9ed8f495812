"""The settings file as TOML tables: read, written atomically, and brought up to date when a key has a new name."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapo_desktop.errors import AppError, UsageError
from sapo_swarm.config import RENAMED, renamed
from sapo_swarm.whole_file import write_whole

_RENAMED: Mapping[str, Mapping[str, str]] = {"run": RENAMED}
"""Section -> the names that its keys had in an earlier version -> their names now."""


def read(path: Path) -> dict[str, Any]:
    """The raw tables under the names of today; empty when there is no file. Raises UsageError, AppError.

    A file with names of an earlier version is rewritten, with one line in the log; all else in it stays as it is.
    """
    try:
        text = path.read_text("utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML ({error}). Mend that line or delete the file.") from error
    except OSError as error:
        raise AppError(f"Cannot read {path} ({error.strerror}).") from error
    found = _old_names(tables)
    return _migrate(path, text, tables, found) if found else tables


def write(path: Path, tables: Mapping[str, Any]) -> None:
    """Write atomically. Raises AppError."""
    import tomli_w

    _write_text(path, tomli_w.dumps(dict(tables)))


def _old_names(tables: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(section, old name, name now) of what the tables still have under an earlier name."""
    return [
        (section, old, now)
        for section, names in _RENAMED.items()
        for old, now in names.items()
        if isinstance(table := tables.get(section), dict) and old in table
    ]


def _migrate(path: Path, text: str, tables: Mapping[str, Any], found: list[tuple[str, str, str]]) -> dict[str, Any]:
    """The tables under the names of today, in the file too if it can be written."""
    current = {
        section: renamed(table, _RENAMED[section]) if section in _RENAMED and isinstance(table, dict) else table
        for section, table in tables.items()
    }
    said = ", ".join(f"{section}.{old} is called {section}.{now} now" for section, old, now in found)
    try:
        edited = _edited(text, found)
        if _parsed(edited) == current:
            _write_text(path, edited)
        else:
            write(path, current)
        outcome = f"{path} was brought up to date"
    except AppError as error:
        outcome = f"it counts, but {path} still has the old name. {error}"
    logging.getLogger(__name__).warning("Settings: %s; %s.", said, outcome.rstrip("."))
    return current


def _edited(text: str, found: list[tuple[str, str, str]]) -> str:
    """The text with the keys renamed where they stand, so that comments and order stay."""
    lines, section = [], ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = header[1].strip()
        for place, old, now in found:
            if place == section:
                line = re.sub(rf"^(\s*){re.escape(old)}(\s*=)", rf"\g<1>{now}\g<2>", line)
        lines.append(line)
    return "".join(lines)


def _parsed(text: str) -> dict[str, Any] | None:
    """None where it is no TOML (the edit gave a key twice, for example)."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _write_text(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}). Free some space or check who owns it.") from error
