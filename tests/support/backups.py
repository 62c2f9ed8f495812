"""Homes and archives for tests of backup and restore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sapo_desktop.paths import Home
from sapo_desktop.services.personal_data import restore


def home_at(folder: Path) -> Home:
    """An empty home, prepared."""
    home = Home(folder, folder / "data", folder / "cache", folder / "logs", folder / "run")
    home.prepare()
    return home


def no(_item: str) -> bool:
    return False


def yes(_item: str) -> bool:
    return True


def brought(home: Home, path: Path, keys: bool = False, replace: Callable[[str], bool] = no) -> dict[str, str]:
    """Restore an archive: what became of each thing."""
    return {outcome.item: outcome.said for outcome in restore.restore_backup(home, path, keys, replace)}


def content(folder: Path) -> dict[str, bytes]:
    """Every file that matters, but for the lock and empty folders."""
    found = (p for p in folder.rglob("*") if p.is_file() and p.name != "node.lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
