"""Converts runs of versions that had no models into models: data/runs/<id>/ moves to data/models/<name>/, journal and all.

There are two steps, and a kill may come between them: model.json is written into the run's folder, then the folder is
renamed. The next start continues with whatever is left.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.store import ModelRecord
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_swarm.config import RunConfig, settings_of_today
from sapo_swarm.types import UNREADABLE


def migrate_runs(home: Home) -> list[str]:
    """Move what is left of data/runs/; a sentence for each run that was or could not be moved. Does nothing while a node
    works there."""
    waiting = sorted(path.parent for path in home.runs.glob("*/config.json"))
    if not waiting:
        return []
    try:
        with NodeLock(home.lock):
            return [_adopt(home, folder, alone=len(waiting) == 1) for folder in waiting]
    except AppError:  # a node of the older version works in one of them: the next start moves them
        return []


def _adopt(home: Home, run: Path, alone: bool) -> str:
    try:
        record = _record(home, run, alone)
        home.models.mkdir(parents=True, exist_ok=True)
        target = home.models / store.free_folder(home.models, record.name)
        run.rename(target)
    except (AppError, OSError, *UNREADABLE) as error:
        return f"The run {run.name} could not become a model ({error}). It stays as it is in {run}."
    return f"The run {run.name} is a model now: {record.name}."


def _record(home: Home, run: Path, alone: bool) -> ModelRecord:
    """The record that an earlier attempt wrote, else a new one, written now. Raises AppError, OSError, MsgspecError."""
    taken = store.taken_model_names(home)
    if (run / store.RECORD).exists():
        record = store.read_model(run).record
        if record.name.lower() not in {name.lower() for name in taken}:
            return record
        return store.write_model_record(
            run, msgspec.structs.replace(record, name=store.unused_name(record.name, taken))
        ).record
    config = msgspec.convert(settings_of_today(msgspec.json.decode((run / "config.json").read_bytes())), RunConfig)
    journal = run / "journal.db"
    last_used = (journal if journal.exists() else run).stat().st_mtime
    fresh = store.record_of(_name(config, last_used, alone, taken), config, id=run.name, created=last_used)
    return store.write_model_record(run, msgspec.structs.replace(fresh, trained=config, last_trained=last_used)).record


def _name(config: RunConfig, last: float, alone: bool, taken: Collection[str]) -> str:
    """A single run becomes my-model; several are named by what they trained and when."""
    if alone and not taken:
        return store.FIRST
    when = time.strftime("%Y-%m-%d", time.localtime(last))
    return store.unused_name(store.suggest_model_name(f"{Path(config.model).name[: store.LONGEST - 14]}-{when}"), taken)
