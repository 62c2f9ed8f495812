"""The person's tasks, found by name in one folder: each process is told once where it lies.

A task is read when it is first named and stays as it was then: one process works with one version of it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.types import TaskRef

if TYPE_CHECKING:
    from sapo_swarm.tasks.own.folder import OwnTask

PRESET = "own"
"""The one preset of an own task; no other task has one of this name."""
ENVIRONMENT = "SAPO_TASKS"
"""Tells the scorer worker where the folder lies."""
ALLOWED = "allowed-code.txt"
"""Beside the tasks, never in one: SHA-256 of each reward.py that the person said yes to."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class _Library:
    folder: Path | None = None

    def __init__(self) -> None:
        self.tasks: dict[str, OwnTask] = {}


_library = _Library()


def use(folder: Path | None) -> None:
    """Look for tasks in this folder from now on (None: nowhere). It need not exist."""
    _library.folder = folder
    _library.tasks.clear()


def folder() -> Path | None:
    """Where tasks are looked for."""
    return _library.folder


def names() -> list[str]:
    """Folders that hold a task, good or not, in order."""
    if _library.folder is None or not _library.folder.is_dir():
        return []
    found = (path.parent.name for path in _library.folder.glob("*/task.toml"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def has(name: str) -> bool:
    """There is a folder of this name with a task.toml."""
    within = _library.folder
    return within is not None and _NAME.fullmatch(name) is not None and (within / name / "task.toml").is_file()


def find(name: str) -> OwnTask:
    """The task of that name. Raises BadTask, KeyError where there is none."""
    from sapo_swarm.tasks.own.folder import read_task

    if name not in _library.tasks:
        if _library.folder is None or not has(name):
            raise KeyError(name)
        task = read_task(_library.folder / name)
        if task.code and not allowed(task.code):
            raise BadTask(
                f"Task {name!r} is judged by Python code (reward.py), which never runs before you said yes to it. "
                f"Read {_library.folder / name / 'reward.py'}, then: sapo-desktop tasks check {name} --allow-code"
            )
        _library.tasks[name] = task
    return _library.tasks[name]


def allowed(code: bytes) -> bool:
    """The person said yes to a reward.py of exactly this content."""
    return _library.folder is not None and hashlib.sha256(code).hexdigest() in _yes(_library.folder / ALLOWED)


def allow(code: bytes) -> None:
    """The person says yes to a reward.py of exactly this content. Raises OSError."""
    assert _library.folder is not None
    path = _library.folder / ALLOWED
    lines = sorted(_yes(path) | {hashlib.sha256(code).hexdigest()})
    partial = path.with_suffix(".partial")
    partial.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    partial.replace(path)


def _yes(path: Path) -> set[str]:
    try:
        return set(path.read_text("utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def is_own(ref: TaskRef) -> bool:
    """The reference is one of an own task: private, it means nothing on another machine."""
    return ref.generator.startswith("task-")


def system(ref: TaskRef) -> str:
    """The system prompt of an own task's questions; "" where it is the app's. Raises BadTask, KeyError."""
    return find(ref.dataset).spec.system if is_own(ref) else ""
