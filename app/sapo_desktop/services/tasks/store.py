"""Own tasks on the disk: data/tasks/<name>/."""

from __future__ import annotations

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, write_task


def keep(task: OwnTask, home: Home, replace: bool) -> None:
    """Store a task under its name and make it the one in force. Raises UsageError where one is there, AppError."""
    name = task.spec.name
    if library.has(name) and not replace:
        raise UsageError(f"There is a task {name!r} already. Give this one another --name, or say --replace.")
    try:
        home.tasks.mkdir(parents=True, exist_ok=True)
        write_task(task, home.tasks / name)
    except OSError as error:
        raise AppError(f"Cannot write {home.tasks / name} ({error.strerror}). Free some space.") from error
    library.use(home.tasks)


def installed() -> str:
    """A sentence with the names of the person's tasks."""
    names = library.names()
    return f"You have: {', '.join(names)}." if names else "You have none yet. Make one: sapo-desktop tasks new FILE"
