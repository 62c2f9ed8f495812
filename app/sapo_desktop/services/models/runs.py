"""Runs on disk: data/runs/<id>/ with config.json, journal.db, checkpoints/, evaluations/."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sapo_desktop.errors import AppError, UsageError
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library

TASKS = "tasks.json"
"""In a run's folder: the versions of the person's own tasks that it trains on."""
_FREE_TO_CHANGE = {
    "rounds",
    "threads",
    "eval_every",
    "eval_items",
    "checkpoint_every",
    "keep_checkpoints",
    "keep_groups",
    "tripwire",
    "device",
}
"""Settings that may differ when a run is resumed: they do not change what is learned."""


@dataclass(frozen=True)
class Run:
    """One run. rounds_done: rounds in its newest complete checkpoint. tasks: name -> digest of own tasks, as it began."""

    run_id: str
    folder: Path
    config: RunConfig
    rounds_done: int
    changed: float
    tasks: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return 0 < self.config.rounds <= self.rounds_done


def list_runs(folder: Path) -> list[Run]:
    """All readable runs, the most recently changed last."""
    found = [run for path in folder.glob("*/config.json") if (run := _read(path.parent)) is not None]
    return sorted(found, key=lambda r: r.changed)


def find(folder: Path, run_id: str) -> Run:
    """The run of that id or a unique beginning of it; "" is the latest. Raises UsageError."""
    runs = list_runs(folder)
    if not runs:
        raise UsageError("There is no run yet. Start one: sapo-desktop node --silo")
    if not run_id:
        return runs[-1]
    exact = [r for r in runs if r.run_id == run_id] or [r for r in runs if r.run_id.startswith(run_id)]
    if len(exact) != 1:
        names = ", ".join(r.run_id for r in runs[-5:])
        raise UsageError(
            f"{'Several runs begin' if exact else 'No run begins'} with {run_id!r}. The latest are: {names}"
        )
    return exact[0]


def open_run(folder: Path, config: RunConfig, new: bool, run_id: str = "") -> tuple[str, Path]:
    """The id and folder to work in: the latest unfinished run of the same settings and own tasks, else a new one.

    Raises AppError when the disk refuses, UsageError when a named run has other settings.
    """
    if run_id and not new:
        named = [r for r in list_runs(folder) if r.run_id == run_id]
        if named and _essence(named[0].config) != _essence(config):
            raise UsageError(
                f"Run {run_id} was made with other settings ({_difference(named[0].config, config)}). Use --new."
            )
        if named and named[0].tasks != task_versions(config):
            raise UsageError(f"A task of run {run_id} was changed since: its figures would not compare. Use --new.")
        if named:
            return _write(named[0].folder, config)
    if not new and not run_id:
        same = [r for r in list_runs(folder) if _essence(r.config) == _essence(config)]
        same = [r for r in same if r.tasks == task_versions(config)]
        if same and not (config.rounds and same[-1].rounds_done >= config.rounds):
            return _write(same[-1].folder, config)
    base = run_id or time.strftime("%Y%m%d-%H%M%S") + f"-{_slug(Path(config.model).name)}"
    name, number = base, 1
    while (folder / name).exists():
        number += 1
        name = f"{base}-{number}"
    return _write(folder / name, config)


def _write(folder: Path, config: RunConfig) -> tuple[str, Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / ".config.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(config)))
        partial.replace(folder / "config.json")
        if versions := task_versions(config):
            (folder / TASKS).write_bytes(msgspec.json.encode(versions))
    except OSError as error:
        raise AppError(
            f"Cannot write {folder} ({error.strerror}). Free some space or set SAPO_HOME elsewhere."
        ) from error
    return folder.name, folder


def _read(folder: Path) -> Run | None:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=RunConfig)
        journal = folder / "journal.db"
        changed = (journal if journal.exists() else folder).stat().st_mtime
    except (OSError, msgspec.MsgspecError):
        return None
    rounds = [int(p.name[6:]) for p in (folder / "checkpoints").glob("round-*") if p.name[6:].isdigit()]
    return Run(folder.name, folder, config, max(rounds, default=0), changed, _tasks(folder))


def task_versions(config: RunConfig) -> dict[str, str]:
    """Name -> digest of the person's own tasks among the run's. Raises BadTask."""
    return {name: library.find(name).digest for name in config.tasks if catalogue.is_own(name)}


def _tasks(folder: Path) -> dict[str, str]:
    """What stands in tasks.json; runs on other tasks have none."""
    try:
        return msgspec.json.decode((folder / TASKS).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _slug(name: str) -> str:
    """A model's name as part of a folder name on every system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] or "model"


def _essence(config: RunConfig) -> dict[str, object]:
    return {k: v for k, v in msgspec.structs.asdict(config).items() if k not in _FREE_TO_CHANGE}


def _difference(old: RunConfig, new: RunConfig) -> str:
    a, b = _essence(old), _essence(new)
    return ", ".join(f"{k} {a[k]!r} -> {b[k]!r}" for k in a if a[k] != b[k])
