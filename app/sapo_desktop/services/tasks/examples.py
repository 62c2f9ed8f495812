"""Tasks that ship as examples."""

from __future__ import annotations

from importlib.resources import as_file, files

from sapo_desktop.errors import UsageError
from sapo_swarm.tasks.own.folder import OwnTask, read_task


def names() -> list[str]:
    """The examples, in order."""
    root = files("sapo_assets").joinpath("tasks")
    return (
        sorted(entry.name for entry in root.iterdir() if entry.joinpath("task.toml").is_file()) if root.is_dir() else []
    )


def one(name: str) -> OwnTask:
    """An example. Raises UsageError."""
    if name not in names():
        raise UsageError(f"There is no example {name!r}. There are: {', '.join(names())}.")
    with as_file(files("sapo_assets").joinpath("tasks", name)) as folder:
        return read_task(folder)


def every() -> dict[str, OwnTask]:
    """All of them by name."""
    return {name: one(name) for name in names()}
