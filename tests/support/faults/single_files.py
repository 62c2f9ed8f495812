"""Files that are replaced as a whole: how each is written and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.faults.scenario import TIMES, Promise, Scenario, Try, again, nothing

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.services.models.shelf import store as shelf
from sapo_desktop.services.swarms import membership
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator.admin_client import AdminAccess, read_access, write_access
from sapo_swarm.node import aha_trail, resume_log
from sapo_swarm.node.resume_log import InFlight
from sapo_swarm.protocol.identity import KeyStoreError, load_or_create
from sapo_swarm.protocol.phrase_watch import PhraseWatch
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import build_task, read_task, write_task
from sapo_swarm.tasks.own.import_rows import read_jsonl
from sapo_swarm.tasks.own.spec import parse_spec
from sapo_swarm.types import Question, TaskRef

# -- files that are replaced as a whole: the last one that was promised is there, or a newer one


def replaced(
    name: str, write: Callable[[Path, int], object], read: Callable[[Path], int], make: Callable[[Path], None] = nothing
) -> Scenario:
    """write(folder, number), read(folder) -> number, 0 where there is none yet."""

    def work(folder: Path, try_: Try, promise: Promise) -> None:
        for number in range(1, TIMES):
            if again(try_, lambda n=number: write(folder, n)):  # type: ignore[misc]
                promise(number)

    def check(folder: Path, promised: Sequence[int]) -> None:
        assert read(folder) >= max(promised, default=0)

    return Scenario(name, make, work, check)


QUESTION = Question(TaskRef("basic_arithmetic", "starter", 1), "What is 12 + 5?", "0" * 64)


def keep_phrases(folder: Path, number: int) -> None:
    made = PhraseWatch()
    made.observe_local([(f"step {word} of it", QUESTION) for word in ("a", "b", "c", "d")[:number]])
    aha_trail.save_swarm_memory(folder, made.packed())


def kept_phrases(folder: Path) -> int:
    found, _, said = aha_trail.load_swarm_memory(folder)
    assert not said
    return found.packed().observed


def keep_in_flight(folder: Path, number: int) -> None:
    resume_log.save_in_flight(folder, InFlight(number, "x", (), None, 0, 0, {}))


def kept_in_flight(folder: Path) -> int:
    found = resume_log.load_in_flight(folder)
    return 0 if found is None else found.round


def keep_record(folder: Path, number: int) -> None:
    record = shelf.record_of("ada", RunConfig(rounds=number), "id")
    shelf.write_model_record(folder, record)


def kept_record(folder: Path) -> int:
    return shelf.read_model(folder).config.rounds


def keep_setting(folder: Path, number: int) -> None:
    settings.write_setting(folder / "config.toml", "run.rounds", str(number))


def kept_setting(folder: Path) -> int:
    return settings.load_settings(folder / "config.toml").run.rounds


def keep_invite(folder: Path, number: int) -> None:
    membership.save_invite(f"sapo://127.0.0.1:{number}/#s={'a' * 16}", folder / "invite")


def kept_invite(folder: Path) -> int:
    return membership.load_invite(folder / "invite").port if (folder / "invite").exists() else 0


def keep_access(folder: Path, number: int) -> None:
    write_access(folder / "admin.json", AdminAccess(key="k", port=number))


def kept_access(folder: Path) -> int:
    return read_access(folder / "admin.json").port if (folder / "admin.json").exists() else 0


# -- the node's key


class NoKeyring:
    """As on a headless Linux."""

    def get_password(self, _service: str, _username: str) -> str | None:
        raise RuntimeError("no keyring")

    def set_password(self, _service: str, _username: str, _password: str) -> None:
        raise RuntimeError("no keyring")


def key_of(folder: Path) -> str:
    """As a verb does it: what goes wrong is the app's own error."""
    try:
        return load_or_create(folder, keyring=NoKeyring()).identity.node
    except KeyStoreError as error:
        raise AppError(str(error)) from error


def key_work(folder: Path, try_: Try, promise: Promise) -> None:
    for _ in range(2):
        got: list[str] = []
        if again(try_, lambda got=got: got.append(key_of(folder))):  # type: ignore[misc]
            promise(got[0])


def key_check(folder: Path, promised: Sequence[str]) -> None:
    assert {*promised, key_of(folder)} == set(promised) or not promised


# -- a task of the person's own


def task(number: int) -> Any:
    spec = parse_spec('name = "sums"\nprompt = "{q}"\nanswer = "a"\n', "task.toml")
    rows = [read_jsonl(f'{{"q":"{side} {number}","a":"1"}}\n') for side in ("train", "held-out")]
    return build_task(spec, rows[0], rows[1])


def keep_task(folder: Path, number: int) -> None:
    write_task(task(number), folder / "sums")


def kept_task(folder: Path) -> int:
    library.set_task_folder(folder)
    if not (folder / "sums").exists():
        return 0
    number = read_task(folder / "sums").train[0]["q"].rpartition(" ")[2]
    return int(number) if number.isdecimal() else -1
