"""Everything that the app made on this machine, and its removal. The program itself is pip's or the system's to remove."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes.lock import NodeLock

_SETTINGS = {
    "config.toml": "your settings",
    "config.partial": "your settings, half written",
    "invite": "the invite of your swarm",
    "invite.partial": "the invite of your swarm, half written",
    "endpoint-token": "the key with which other programs reach serve-model",
}
"""Files of the configuration folder, which may be a folder of the person's own (SAPO_HOME), and what they are."""
_DATA = {
    "tasks": "your own tasks",
    "ratings": "answers that you rated",
    "identity": "your node's identity",
    "judges.json": "how far judges agree with you",
    "swarm.sqlite": "the swarm that you host",
}
"""What lies in the data folder beside the models."""


@dataclass(frozen=True)
class Made:
    """A file or folder that the app made. size in bytes; what: in words."""

    path: Path
    size: int
    what: str


def made(home: Home) -> list[Made]:
    """What is there, the largest part first. Nothing outside the app's own folders is looked at."""
    models = store.all_models(home)
    count = f"{len(models)} model{'' if len(models) == 1 else 's'} with weights, history and exports"
    beside = [what for name, what in _DATA.items() if (home.data / name).exists()]
    found = [
        (home.data, "; ".join((count, *beside))),
        (home.cache, "measurements, indexes of rollouts and converted base models, which can be made again"),
        (home.logs, "logs"),
        (home.runtime, "sockets"),
        *((home.config / name, what) for name, what in _SETTINGS.items()),
    ]
    there = [Made(path, _size(path), what) for path, what in found if path.exists()]
    return sorted(there, key=lambda one: -one.size)


def _size(path: Path) -> int:
    return store.size(path) if path.is_dir() else path.stat().st_size


def remove(home: Home, found: Sequence[Made]) -> int:
    """Remove them; how many bytes that freed. Raises AppError: a node runs, or something cannot be removed."""
    home.runtime.mkdir(parents=True, exist_ok=True)
    with NodeLock(home.lock):
        for one in found:
            try:
                shutil.rmtree(one.path) if one.path.is_dir() else one.path.unlink()
            except FileNotFoundError:  # inside a folder that went before it
                continue
            except OSError as error:
                raise AppError(
                    f"{one.path} could not be removed ({error.strerror}). What came before it is gone."
                ) from error
    shutil.rmtree(home.runtime, ignore_errors=True)
    for folder in {one.path.parent for one in found}:
        with suppress(OSError):  # it holds something of somebody else
            folder.rmdir()
    return sum(one.size for one in found)
