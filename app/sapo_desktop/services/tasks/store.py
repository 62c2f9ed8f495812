"""Tasks on the disk: custom ones in data/tasks/<name>/, and the bundled examples."""

from __future__ import annotations

import contextlib
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf.store import all_models
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import SPEC, OwnTask, read_task, spec_text, write_task
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.whole_file import write_atomically

# The bundled examples.


def example_names() -> list[str]:
    """The examples, in order."""
    root = files("sapo_assets").joinpath("tasks")
    return (
        sorted(entry.name for entry in root.iterdir() if entry.joinpath("task.toml").is_file()) if root.is_dir() else []
    )


def load_example(name: str) -> OwnTask:
    """An example. Raises UsageError."""
    if name not in example_names():
        raise UsageError(f"There is no example {name!r}. There are: {', '.join(example_names())}.")
    with as_file(files("sapo_assets").joinpath("tasks", name)) as folder:
        return read_task(folder)


def load_examples() -> dict[str, OwnTask]:
    """All of them by name."""
    return {name: load_example(name) for name in example_names()}


# Custom tasks on the disk: data/tasks/<name>/.


def store_task(task: OwnTask, home: Home, replace: bool) -> Path | None:
    """Store a task under its name and activate it. Returns where the replaced one is kept, which is the last one of that
    name: None where nothing was lost. Raises UsageError where one exists and must not be replaced, AppError."""
    name, replaced = task.spec.name, replaced_task_path(home, task.spec.name)
    if library.has_task(name) and not replace:
        raise UsageError(f"There is a task {name!r} already. Give this one another --name, or say --replace.")
    aside = replaced.with_name(f".{name}.partial")
    try:
        home.tasks.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        if (home.tasks / name).is_dir():
            shutil.copytree(home.tasks / name, aside)
        write_task(task, home.tasks / name)
        lost = aside.is_dir() and _files(aside) != _files(home.tasks / name)
        if lost:
            shutil.rmtree(replaced, ignore_errors=True)
            aside.rename(replaced)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", "") or error
        raise AppError(f"Cannot write {home.tasks / name} ({why}). Free some space.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    library.set_task_folder(home.tasks)
    return replaced if lost else None


def keep_shots(task: OwnTask, shots: int, home: Home) -> OwnTask:
    """The stored task with `shots` worked examples in each question, which is another version of it. Raises AppError,
    BadTask."""
    spec = msgspec.structs.replace(task.spec, shots=shots)
    try:
        write_atomically(home.tasks / spec.name / SPEC, spec_text(spec))
    except OSError as error:
        raise AppError(f"Cannot write {home.tasks / spec.name / SPEC} ({error.strerror or error}).") from error
    library.set_task_folder(home.tasks)
    return library.load_task(spec.name)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def replaced_task_path(home: Home, name: str) -> Path:
    """Where a replaced task is kept."""
    return home.data / "replaced" / "tasks" / name


def require_own(name: str) -> None:
    """Raise UsageError for anything but a custom task."""
    if name in CATALOGUE:
        raise UsageError(f"{name} ships with the app: only tasks of your own can be deleted. {describe_custom_tasks()}")
    if not library.has_task(name):
        raise UsageError(f"There is no task of your own named {name[:60]!r}. {describe_custom_tasks()}")


def require_unused(home: Home, name: str) -> None:
    """Raise UsageError where settings name the task: a model could then be neither trained nor measured; AppError."""
    mine = sorted(model.name for model in all_models(home) if name in model.config.tasks)
    default = name in settings.load_settings(home.settings).run.tasks
    if not mine and not default:
        return
    of = f"the model{'s' * (len(mine) > 1)} {', '.join(mine)}" if mine else ""
    by = ", ".join(filter(None, ("the settings for new models (run.tasks)" if default else "", of)))
    ways = ["in the settings (sapo-desktop config set run.tasks A,B)"] if default else []
    ways += (
        [f"Give {'each' if mine[1:] else 'it'} other tasks (sapo-desktop node {mine[0]} --tasks A,B)"] if mine else []
    )
    raise UsageError(
        f"Task {name} is in use by {by}. {'; '.join(ways[::-1])}; or delete the task all the same: --even-in-use"
    )


def remove_task(home: Home, name: str) -> None:
    """Remove a task with its rows, the kept copy of an earlier one, the person's yes to its code where no other task has the
    same code, and its place in swarms. Raises AppError."""
    folder = home.tasks / name
    doomed = folder.with_name(f".{name}.partial")  # a kill midway leaves no half-deleted task behind
    with contextlib.suppress(BadTask, OSError):
        consent = library.consent_bytes(read_task(folder, need_held_out=False))
        others = (path for path in home.tasks.glob("*/*.py") if path.parent != folder)
        if not any(path.read_bytes() == consent for path in others):
            library.disallow_task_code(consent)
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(doomed, ignore_errors=True)
            folder.rename(doomed)
            shutil.rmtree(doomed)
        shutil.rmtree(replaced_task_path(home, name), ignore_errors=True)
        for swarm in {entry.swarm for entry in library.load_shared_tasks(home.tasks) if entry.name == name}:
            library.remove_shared_task(home.tasks, swarm, name)
    except OSError as error:
        raise AppError(f"{folder} could not be removed ({error.strerror or error}).") from error
    library.set_task_folder(home.tasks)


def describe_custom_tasks() -> str:
    """A sentence with the names of the person's tasks."""
    names = library.task_names()
    return f"You have: {', '.join(names)}." if names else "You have none yet. Make one: sapo-desktop tasks new FILE"
