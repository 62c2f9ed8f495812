"""Creating, renaming, duplicating, deleting, and freeing space: what an owner does with a model besides training it."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_backends.checkpoints.local_models import is_named
from sapo_backends.errors import size_text
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import fetching
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted, encode_event
from sapo_swarm.node.checkpoints import folder_bytes, free_bytes
from sapo_swarm.node.journal import JournalError, decode_event_row, read_only
from sapo_swarm.tasks.catalogue import UnknownTask
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import UNREADABLE

_PARTIAL = ".partial-"
_ABANDONED_S = 3600.0
"""After this, leftovers of a kill are no longer taken for work in progress."""


@dataclass(frozen=True)
class RemovableFolder:
    """Something that can be removed. size in bytes; what: in words."""

    path: Path
    size: int
    what: str


def create_model(home: Home, name: str, config: RunConfig) -> Model:
    """A new model of that name that starts from config.model. A base on the hub is downloaded when training first starts.
    Everything is checked before a folder is created, including what the hub says about a base that is not here yet.

    Raises UsageError, UnknownTask, BackendUnavailable, ModelNotFound, AppError; then nothing is left behind.
    """
    store.check_model_name(name, store.taken_model_names(home))
    base = config.model
    config = msgspec.structs.replace(config, model=flags.absolute_model(base))  # a node starts in another folder
    flags.check_config(config)
    fetching.require_usable_base(config)
    return store.create_model_folder(home, name, config, base if is_named(base) else config.model)


def rename_model(home: Home, model: Model, name: str) -> Model:
    """The model under its new name; its folder stays where it is, so this may happen during training.

    Raises UsageError, AppError.
    """
    if name == model.name:
        raise UsageError(f"It is called {name} already. Type another name.")
    store.check_model_name(name, store.taken_model_names(home, model.folder))
    return store.write_model_record(
        model.folder, msgspec.structs.replace(store.read_model(model.folder).record, name=name)
    )


def duplicate_model(home: Home, model: Model, name: str) -> Model:
    """Another model with the same weights and history, without its exports. Raises UsageError, AppError."""
    store.check_model_name(name, store.taken_model_names(home))
    identity = store.record_of(name, model.config)
    partial = home.models / f"{_PARTIAL}{identity.id}"
    record = msgspec.structs.replace(model.record, id=identity.id, name=name, created=time.time())
    try:
        require_room(home.models, folder_bytes(model.folder) - folder_bytes(model.folder / "exports"))
        shutil.copytree(model.folder, partial, ignore=_left_out, ignore_dangling_symlinks=True)
        copy_journal(model.folder / "journal.db", partial / "journal.db", identity.id)
        store.write_model_record(partial, record)
        folder = home.models / store.free_folder(home.models, name)
        partial.rename(folder)
    except (OSError, shutil.Error, sqlite3.Error, *UNREADABLE) as error:
        raise AppError(f"{model.name} could not be duplicated ({error}). Nothing was changed.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return store.read_model(folder)


def _left_out(_folder: str, entries: list[str]) -> set[str]:
    """Exports (easy to make again), half-written files, and the journal, which is copied separately as a whole."""
    return {e for e in entries if e == "exports" or e.startswith((_PARTIAL, ".", "journal.db"))}


def copy_journal(source: Path, target: Path, id: str) -> None:
    """Copy a journal that a node may be writing; its sessions get the copy's own id: the copy's life began there."""
    if not source.exists():
        return
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
        rows = new.execute("SELECT seq, body FROM events WHERE kind = 'run_started'").fetchall()
        for seq, body in rows:
            event = decode_event_row(bytes(body))
            if isinstance(event, RunStarted):
                changed = encode_event(msgspec.structs.replace(event, run_id=id))
                new.execute("UPDATE events SET body = ? WHERE seq = ?", (changed, seq))
        new.commit()


def require_room(folder: Path, needed: int, what: str = "That needs") -> None:
    """Raise AppError where fewer bytes are free on the disk of that folder. what: the beginning of its sentence."""
    free = free_bytes(folder)
    if free < needed:
        raise AppError(f"{what} {size_text(needed)} and {size_text(free)} are free. Free some space first.")


def delete_model(model: Model) -> int:
    """Remove the model and everything that belongs to it; returns the bytes freed. No node may be training it.

    Raises AppError.
    """
    freed = folder_bytes(model.folder)
    path = model.folder
    try:
        path = path.rename(path.with_name(f"{_PARTIAL}{path.name}"))  # a kill leaves no half-deleted model
        shutil.rmtree(path)
    except OSError as error:
        raise AppError(f"{model.name} could not be removed ({error}). What is left lies in {path}.") from error
    return freed


def spare_checkpoints(model: Model, now: float) -> list[RemovableFolder]:
    """Checkpoints that are neither the newest nor the best, and half-written ones left by a kill: a node may be writing
    another right now. now: Unix time."""
    folder, keep = model.folder / "checkpoints", _kept(model)
    spare = [
        RemovableFolder(p, folder_bytes(p), "an older checkpoint") for p in model.checkpoints if p.name not in keep
    ]
    halves = [path for path in sorted(folder.glob(f"{_PARTIAL}*")) if now - _touched(path) > _ABANDONED_S]
    return spare + [RemovableFolder(path, folder_bytes(path), "half a checkpoint") for path in halves]


def _touched(folder: Path) -> float:
    """When a folder or something in it last changed; infinity where some of it vanishes meanwhile."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return float("inf")


def _kept(model: Model) -> set[str]:
    """The newest checkpoint, those with the best held-out results (sampled and greedy), and the one that the tripwire
    restored or is about to restore."""
    from sapo_swarm.evaluation import regular_items  # numpy: only when something is to be removed
    from sapo_swarm.sapo import held_out_tripwire

    journal = model.folder / "journal.db"
    try:
        regular = regular_items(model.config)
        events = read_only(journal, kinds=held_out_tripwire.KINDS) if journal.exists() else []
    except (JournalError, UnknownTask, BadTask):  # the best one is unknown
        return {path.name for path in model.checkpoints}
    watch = held_out_tripwire.watch_of(events, regular, 0.0)
    rounds = set(held_out_tripwire.checkpoints_to_keep(watch, watch.trips)) | (
        {watch.restored} if watch.trips else set()
    )
    pinned = [path.name for path in model.checkpoints if store.rounds_of(path) in rounds]
    return {path.name for path in model.checkpoints[-1:]} | set(pinned)


def remove_folders(leftovers: list[RemovableFolder]) -> int:
    """Remove them and return the bytes freed; what the node removed meanwhile is not an error. Raises AppError."""
    freed = 0
    for leftover in leftovers:
        try:
            shutil.rmtree(leftover.path)
            freed += leftover.size
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AppError(f"{leftover.path} could not be removed ({error}).") from error
    return freed


def remove_abandoned(home: Home, now: float) -> None:
    """Remove what a kill left of duplicates and deletions, once nothing has touched it for an hour. now: Unix time."""
    for path in home.models.glob(f"{_PARTIAL}*"):
        with suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
