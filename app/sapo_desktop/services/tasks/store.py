"""Own tasks on the disk: data/tasks/<name>/."""

from __future__ import annotations

import shutil
from pathlib import Path

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, write_task


def keep(task: OwnTask, home: Home, replace: bool) -> Path | None:
    """Store a task under its name and make it the one in force; where the one lies now that it replaced, the last one of that
    name: None where nothing was lost. Raises UsageError where one is there and shall not be replaced, AppError."""
    name, kept = task.spec.name, replaced(home, task.spec.name)
    if library.has(name) and not replace:
        raise UsageError(f"There is a task {name!r} already. Give this one another --name, or say --replace.")
    aside = kept.with_name(f".{name}.partial")
    try:
        home.tasks.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        if (home.tasks / name).is_dir():
            shutil.copytree(home.tasks / name, aside)
        write_task(task, home.tasks / name)
        lost = aside.is_dir() and _files(aside) != _files(home.tasks / name)
        if lost:
            shutil.rmtree(kept, ignore_errors=True)
            aside.rename(kept)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", "") or error
        raise AppError(f"Cannot write {home.tasks / name} ({why}). Free some space.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    library.use(home.tasks)
    return kept if lost else None


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def replaced(home: Home, name: str) -> Path:
    """Where a task is kept that another one took the place of."""
    return home.data / "replaced" / "tasks" / name


def installed() -> str:
    """A sentence with the names of the person's tasks."""
    names = library.names()
    return f"You have: {', '.join(names)}." if names else "You have none yet. Make one: sapo-desktop tasks new FILE"
