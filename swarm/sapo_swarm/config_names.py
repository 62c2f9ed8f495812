"""Settings of a run that an earlier version kept under another name; files with the old names stay readable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {"own_groups": "local_groups"}
"""The name of before -> the name now."""


def renamed(table: Mapping[str, Any], names: Mapping[str, str] = RENAMED) -> dict[str, Any]:
    """A table of settings under the names of today. One that stands there under both names: the name of today counts."""
    kept = {key: value for key, value in table.items() if names.get(key) not in table}
    return {names.get(key, key): value for key, value in kept.items()}
