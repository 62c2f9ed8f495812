"""The person's tasks by name, and which of them are shared in which swarm."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.tasks.own.spec import RUNS_CODE, BadTask, Extract
from sapo_swarm.types import UNREADABLE, Name, Sha256, TaskRef
from sapo_swarm.whole_file import write_atomically

if TYPE_CHECKING:
    from sapo_swarm.tasks.own.folder import OwnTask

# Which tasks this person shares, or accepted, in which swarm: one file beside the tasks, never in one.
#
# A folder of foreign origin cannot say for itself that it may leave the machine.

FILE = "shared-tasks.json"
MAX_BYTES = 2**20
MAX_ENTRIES = 1000


class SharedTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version of a task that the members of a swarm train on together.

    swarm: its id. digest: of the task as it travels, which is without held-out rows if held_out is false. mine: this home
    shares it; else it came from the swarm and the person accepted it.
    """

    swarm: Annotated[str, Meta(pattern=r"^[a-z2-7]{16}\Z")]
    name: Name
    digest: Sha256
    held_out: bool
    mine: bool


def load_shared_tasks(folder: Path) -> tuple[SharedTask, ...]:
    """The entries of the file in the folder of tasks; none if it cannot be read, for then nothing leaves the machine."""
    path = folder / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            return ()
        return msgspec.json.decode(path.read_bytes(), type=tuple[SharedTask, ...])
    except (OSError, *UNREADABLE):
        return ()


def add_shared_task(folder: Path, entry: SharedTask) -> None:
    """Record a task of a swarm, replacing its earlier version. Raises OSError."""
    others = (
        shared for shared in load_shared_tasks(folder) if (shared.swarm, shared.name) != (entry.swarm, entry.name)
    )
    _write(folder, [*others, entry][-MAX_ENTRIES:])


def remove_shared_task(folder: Path, swarm: str, name: str) -> None:
    """Forget a task of a swarm. Raises OSError."""
    _write(folder, [shared for shared in load_shared_tasks(folder) if (shared.swarm, shared.name) != (swarm, name)])


def _write(folder: Path, entries: Iterable[SharedTask]) -> None:
    write_atomically(folder / FILE, msgspec.json.encode(list(entries)), private=True)


# The person's tasks, found by name in one folder, which each process is given once.
#
# A task is read when it is first named and then stays unchanged: one process works with one version of it.

PRESET = "own"
"""The only preset of a custom task; no other task has one of this name."""
ENVIRONMENT = "SAPO_TASKS"
"""Environment variable with the folder's path for the scorer worker."""
ALLOWED = "allowed-code.txt"
"""Beside the tasks, never in one: SHA-256 of what the person said yes to, see consent_bytes()."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class _Library:
    folder: Path | None = None

    def __init__(self) -> None:
        self.tasks: dict[str, OwnTask] = {}
        self.shared: tuple[SharedTask, ...] | None = None


_library = _Library()


def set_task_folder(folder: Path | None) -> None:
    """Look for tasks in this folder from now on (None: nowhere). It need not exist."""
    _library.folder = folder
    _library.tasks.clear()
    _library.shared = None
    for old in folder.glob(".*.old") if folder is not None else ():
        task = folder / old.name[1:].removesuffix(".old")  # type: ignore[operator]
        if not task.exists():  # killed between the two renames of write_task
            with contextlib.suppress(OSError):
                old.rename(task)


def task_folder() -> Path | None:
    """Where tasks are looked for."""
    return _library.folder


def task_names() -> list[str]:
    """Folders that hold a task, valid or not, in order."""
    if _library.folder is None or not _library.folder.is_dir():
        return []
    names = (path.parent.name for path in _library.folder.glob("*/task.toml"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def has_task(name: str) -> bool:
    """There is a folder of this name with a task.toml."""
    within = _library.folder
    return within is not None and _NAME.fullmatch(name) is not None and (within / name / "task.toml").is_file()


def load_task(name: str) -> OwnTask:
    """The task of that name. Raises BadTask, KeyError if there is none."""
    from sapo_swarm.tasks.own.folder import read_task

    if name not in _library.tasks:
        if _library.folder is None or not has_task(name):
            raise KeyError(name)
        task = read_task(_library.folder / name, need_held_out=not _comes_without_held_out(name))
        if task.code and not is_code_allowed(task.code):
            raise BadTask(
                f"Task {name!r} brings Python code ({task.code_name}), which never runs before you said yes to it. "
                f"Read {_library.folder / name / task.code_name}, then: sapo-desktop tasks check {name} --allow-code"
            )
        if not task.code and runs_code(task) and not is_code_allowed(consent_bytes(task)):
            raise BadTask(
                f"Task {name!r} runs the Python that a model writes, contained, which never happens before you said yes to it "
                "as it is now: "
                f"sapo-desktop tasks check {name} --allow-code"
            )
        _library.tasks[name] = task
    return _library.tasks[name]


def is_loadable_task(name: str) -> bool:
    """There is a task of that name that can be asked."""
    try:
        return bool(load_task(name))
    except (BadTask, KeyError):
        return False


def task_levels(name: str) -> tuple[str, ...]:
    """The presets that a task's questions are sampled from: its levels of difficulty, else PRESET alone. Raises BadTask,
    KeyError."""
    return tuple(load_task(name).levels) or (PRESET,)


def runs_code(task: OwnTask) -> bool:
    """The task needs a yes: it brings code, or runs what a model writes."""
    return any(isinstance(part, RUNS_CODE) for part in task.spec.verifier)


def consent_bytes(task: OwnTask) -> bytes:
    """What the person says yes to: the task's code, or that model-written code is run for this version of the task."""
    return task.code or f"python_tests of {task.spec.name} {task.digest}".encode()


def runs_generated() -> bool:
    """A task in use runs what a model writes, judging by its task.toml."""
    from sapo_swarm.tasks.own.folder import MAX_SPEC, SPEC
    from sapo_swarm.tasks.own.import_rows import decode_text, read_bytes

    for name in task_names():
        with contextlib.suppress(OSError, BadTask):  # such a folder gives no task
            if "python_tests" in decode_text(read_bytes((_library.folder or Path()) / name / SPEC, MAX_SPEC)):
                return True
    return False


def is_code_allowed(code: bytes) -> bool:
    """The person said yes to a file of exactly this content."""
    return _library.folder is not None and hashlib.sha256(code).hexdigest() in _yes(_library.folder / ALLOWED)


def allow_task_code(code: bytes) -> None:
    """Record the person's yes to a file of exactly this content. Raises OSError."""
    assert _library.folder is not None
    _keep_yes(_library.folder / ALLOWED, _yes(_library.folder / ALLOWED) | {hashlib.sha256(code).hexdigest()})


def disallow_task_code(code: bytes) -> None:
    """Withdraw the person's yes to it. Raises OSError."""
    if is_code_allowed(code) and _library.folder is not None:
        _keep_yes(_library.folder / ALLOWED, _yes(_library.folder / ALLOWED) - {hashlib.sha256(code).hexdigest()})


def _keep_yes(path: Path, digests: set[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in sorted(digests)))


def _yes(path: Path) -> set[str]:
    try:
        return set(path.read_text("utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def is_own_ref(ref: TaskRef) -> bool:
    """The reference belongs to a custom task: it means nothing on a machine that does not have this version of it."""
    return ref.generator.startswith("task-")


def shared_in(swarm: str) -> dict[str, SharedTask]:
    """The tasks that this person shares, or accepted, in the swarm of this id, by name: whether or not they still match."""
    return {entry.name: entry for entry in _entries() if entry.swarm == swarm}


def _entries() -> tuple[SharedTask, ...]:
    if _library.shared is None:
        _library.shared = () if _library.folder is None else load_shared_tasks(_library.folder)
    return _library.shared


def has_shared_version(name: str, swarm: str) -> bool:
    """The task is here in exactly the version that the members of this swarm share. Raises BadTask."""
    entry = shared_in(swarm).get(name)
    if entry is None or not has_task(name):
        return False
    task = load_task(name)
    return entry.digest == (task.digest if entry.held_out else task.train_digest)


def resolve_generator(name: str, swarm: str = "") -> str:
    """What makes the questions of a task: in a swarm that shares it, the version as it travels. Raises BadTask, KeyError."""
    from sapo_swarm.tasks.own import folder

    if swarm and has_shared_version(name, swarm):
        return folder.generator_id(shared_in(swarm)[name].digest)
    return load_task(name).generator


def _comes_without_held_out(name: str) -> bool:
    """The task was accepted from a swarm whose host keeps its held-out rows. If no entry says so, as after a restore, the
    empty file that stands in for them does."""
    from sapo_swarm.tasks.own.folder import HELD_OUT

    entries = [entry for entry in _entries() if entry.name == name]
    path = (_library.folder or Path()) / name / HELD_OUT
    if not entries:
        return path.is_file() and not path.stat().st_size
    return any(not entry.mine and not entry.held_out for entry in entries)


def max_episode_turns(ref: TaskRef) -> int:
    """Most turns of the model in a custom task's environment; 0 for a question with one answer. Raises BadTask, KeyError."""
    return load_task(ref.dataset).spec.turns if is_own_ref(ref) else 0


def judge_rubric(ref: TaskRef) -> str:
    """The rubric by which answers to a custom task are judged; "" if they are verified. Raises BadTask, KeyError."""
    return load_task(ref.dataset).spec.rubric if is_own_ref(ref) else ""


def is_judged(ref: TaskRef) -> bool:
    """The answers of its task are judged by a rubric. False for a task that no longer exists."""
    try:
        return bool(judge_rubric(ref))
    except (ValueError, KeyError):
        return False


def is_graded(ref: TaskRef) -> bool:
    """Its task grades answers itself (TaskSpec.graded). False for a task that no longer exists."""
    try:
        return is_own_ref(ref) and load_task(ref.dataset).spec.graded
    except (ValueError, KeyError):
        return False


def answer_extraction(ref: TaskRef) -> Extract | None:
    """Where answers of its task stand ("tags": where the run's answer format says); None if the task no longer exists."""
    try:
        return load_task(ref.dataset).spec.extract if is_own_ref(ref) else "tags"
    except (ValueError, KeyError):
        return None


def answers_elsewhere(ref: TaskRef) -> bool:
    """Answers of its task do not stand where the run's answer format says, or the task no longer exists."""
    return answer_extraction(ref) != "tags"


def task_system_prompt(ref: TaskRef) -> str:
    """The system prompt of a custom task's questions; "" if it is the app's. Raises BadTask, KeyError."""
    return load_task(ref.dataset).spec.system if is_own_ref(ref) else ""
