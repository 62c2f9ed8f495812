"""Restoring an archive: first all of it is extracted into a separate folder and checked; then one thing after another moves
to its place.

What is here stays: a model whose name is taken comes in beside it under a new name; for anything else the person is asked,
and what a yes replaces is kept under data/replaced/. A kill, or a full disk, at any moment leaves what was here as it was;
restoring once more continues.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import keeping, mending, store
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.personal_data import archive
from sapo_desktop.services.personal_data.archive import BackupManifest
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import open_atomic

STAGING = ".restore-"
_SPARE = 100 * 2**20
"""Bytes that stay free on the disk."""


@dataclass(frozen=True)
class RestoreOutcome:
    """What became of one thing. done: it is now here as in the archive (or was before)."""

    item: str
    said: str
    done: bool = True


def read_manifest(home: Home, path: Path) -> BackupManifest:
    """An archive's manifest; nothing is restored. Raises AppError."""
    try:
        with archive.opened_archive(path, home) as (manifest, _):
            return manifest
    except OSError as error:
        raise AppError(f"Cannot read {path} ({error.strerror or error}).") from error


def restore_backup(home: Home, path: Path, keys: bool, replace: Callable[[str], bool]) -> Iterator[RestoreOutcome]:
    """Restore an archive. keys: include the node's identity and its swarm. replace: asked for each thing that is here with
    other content and cannot stand beside it.

    Raises Damaged, AppError; whatever happens, nothing that was here is lost.
    """
    home.prepare()
    with NodeLock(home.lock):
        for leftover in home.data.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=home.data))
        try:
            manifest = _unpacked(home, path, staging)
            yield from _Restoring(home, staging, manifest, replace).all(keys)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _unpacked(home: Home, path: Path, staging: Path) -> BackupManifest:
    try:
        with archive.opened_archive(path, home) as (manifest, tar):
            keeping.require_room(home.data, manifest.size + _SPARE, "To restore it needs")
            archive.extract_archive(tar, manifest, staging)
            return manifest
    except OSError as error:
        raise AppError(f"{path} could not be unpacked ({error.strerror or error}). Nothing was restored.") from error


class _Restoring:
    """One archive, extracted and checked, being moved into place."""

    def __init__(self, home: Home, staging: Path, manifest: BackupManifest, replace: Callable[[str], bool]) -> None:
        self._home, self._staging, self._replace = home, staging, replace
        self._here = archive.files_to_archive(home, keys=True)
        self._replaced = home.data / "replaced" / time.strftime("%Y%m%d-%H%M%S")
        self._items: dict[str, dict[str, archive.ArchiveEntry]] = {}
        for entry in manifest.files:
            self._items.setdefault(archive.restore_unit(entry.name), {})[entry.name] = entry

    def all(self, keys: bool) -> Iterator[RestoreOutcome]:
        """Restore everything, custom tasks first: models are trained on them."""
        for item in sorted(self._items, key=lambda item: (not item.startswith("tasks/"), item)):
            if archive.is_key(item) and not keys:
                yield RestoreOutcome(item, "left in the archive: a key (--keys brings it back)", done=False)
                continue
            try:
                yield self._one(item)
            except (AppError, BadTask, OSError, sqlite3.Error, *UNREADABLE) as error:
                yield RestoreOutcome(item, f"not restored: {safe_text(str(error), 300, lines=False)}", done=False)

    def _one(self, item: str) -> RestoreOutcome:
        target = archive.restore_target(self._home, item) or archive.restore_target(self._home, f"{item}/x")
        assert target is not None  # every name was checked
        target = target.parent if item not in self._items[item] else target
        if self._same(item):
            return RestoreOutcome(item, "is here already")
        source = self._staging / item
        if item.startswith("models/"):
            return self._model(item, source)
        self._check(item, source)
        keyring = item == archive.IDENTITY and archive.keyring_key(self._home)
        if keyring and keyring == source.read_text("ascii", "replace").strip():
            return RestoreOutcome(item, "is here already")
        if target.exists() or keyring:
            if not self._replace(item):
                return RestoreOutcome(item, "stays as it is here (--replace takes the archive's)", done=False)
            self._put_aside(item, target)
        _put(source, target)
        return RestoreOutcome(item, "restored")

    def _same(self, item: str) -> bool:
        present = {name: path for name, path in self._here.items() if archive.restore_unit(name) == item}
        archived = self._items[item]
        return present.keys() == archived.keys() and all(
            present[name].stat().st_size == entry.size and archive.file_sha256(present[name]) == entry.sha256
            for name, entry in archived.items()
        )

    def _check(self, item: str, source: Path) -> None:
        """What cannot be read must not replace what can. Raises AppError, BadTask."""
        if item == archive.SETTINGS:
            settings.load_settings(source)
        elif item.startswith("tasks/"):
            read_task(source, need_held_out=False)

    def _model(self, item: str, source: Path) -> RestoreOutcome:
        """Restore a model under its own name if that is free, else under a new one, as a separate model with its own id."""
        record, models = store.read_model(source).record, store.all_models(self._home)
        name = store.unused_name(store.suggest_model_name(record.name), store.taken_model_names(self._home))
        beside = name != record.name or record.id in {model.record.id for model in models}
        if beside:
            journal = source / "journal.db"
            fresh = store.record_of(name, record.config).id
            if journal.exists():
                keeping.copy_journal(journal, source / "copied", fresh)
                for part in source.glob("journal.db*"):
                    part.unlink()
                (source / "copied").rename(journal)
            store.write_model_record(source, msgspec.structs.replace(record, id=fresh, name=name))
        target = self._home.models / store.free_folder(self._home.models, name)
        source.rename(target)
        outcome = f"restored as {name}, beside the one that is here" if beside else "restored"
        lost = mending.missing_base_hint(store.read_model(target))
        return RestoreOutcome(item, f"{outcome}. {lost}" if lost else outcome)

    def _put_aside(self, item: str, target: Path) -> None:
        if target.exists():
            aside = self._replaced / item
            aside.parent.mkdir(0o700, parents=True, exist_ok=True)
            _put(target, aside)


def _put(source: Path, target: Path) -> None:
    """Move all of it or nothing, also to another disk. Raises OSError."""
    target.parent.mkdir(0o700, parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:  # the settings folder may be on another disk
        if not source.is_file():
            raise
        with source.open("rb") as old, open_atomic(target, private=True) as new:
            shutil.copyfileobj(old, new)
        source.unlink()
