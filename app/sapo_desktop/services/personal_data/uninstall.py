"""Everything that the app created on this machine, and its removal. Removing the program itself is up to pip or the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sapo_backends.checkpoints import hub_cache
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import tokens
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.tasks import judging
from sapo_swarm.node.checkpoints import folder_bytes
from sapo_swarm.protocol import identity
from sapo_swarm.whole_file import half_written

_SETTINGS = {
    "config.toml": "your settings",
    "invite": "the invite of your swarm",
    "trial": "your trial of a swarm",
    "endpoint-token": "the key with which other programs reach serve-model",
    f"{tokens.NAME}.secret": "your token of the model hub",
    f"{judging.KEY}.secret": "the key of your judge",
}
"""Files in the configuration folder, which may be the person's own folder (SAPO_HOME), and what they are. Each may also exist
half-written."""
_DATA = {
    "tasks": "your own tasks",
    "ratings": "answers that you rated",
    "identity": "your node's identity",
    "judges.json": "how far judges agree with you",
    "swarm.sqlite": "the swarm that you host",
}
"""What is in the data folder besides the models."""


@dataclass(frozen=True)
class CreatedPath:
    """A file or folder that the app created. size in bytes; what: in words."""

    path: Path
    size: int
    what: str


def find_created_paths(home: Home) -> list[CreatedPath]:
    """What exists, the largest first. Only the app's own folders are searched."""
    models = len(store.taken_model_names(home))
    count = f"{models} model{'' if models == 1 else 's'} with weights, history and exports"
    beside = [what for name, what in _DATA.items() if (home.data / name).exists()]
    candidates = [
        (home.data, "; ".join((count, *beside))),
        (home.cache, "measurements, indexes of rollouts and converted base models, which can be made again"),
        (home.logs, "logs"),
        (home.runtime, "sockets"),
        *((home.config / name, what) for name, what in _SETTINGS.items()),
        *(
            (path, f"{what}, half written")
            for name, what in _SETTINGS.items()
            for path in half_written(home.config / name)
        ),
    ]
    existing = [CreatedPath(path, _size(path), what) for path, what in candidates if path.exists()]
    return sorted(filter(None, (_with_inner(one, existing) for one in existing)), key=lambda one: -one.size)


def keyring_entries(home: Home) -> tuple[dict[str, str], str]:
    """The entries of this home in the system's keyring, entry -> in words; and why they are unknown, "" where they are known.
    Entries of the account's other homes are not looked at."""
    entries = ((name, identity.entry_named(home.config, name)) for name in (tokens.NAME, judging.KEY))
    texts = {entry: _SETTINGS[f"{name}.secret"] for name, entry in entries if entry}
    try:
        node, _ = identity.node_in_keyring(home.data / "identity")
        present = {entry: texts[entry] for entry in identity.in_keyring(list(texts))}
        return ({node: "your node's key"} if node else {}) | present, ""
    except identity.KeyStoreError as error:
        return {}, f"{error} Look there yourself for entries of {identity.SERVICE}."


def remove_keyring_entries(names: Iterable[str]) -> None:
    """Remove these entries from the keyring. Raises AppError."""
    try:
        identity.delete_keyring_entries(list(names))
    except identity.KeyStoreError as error:
        raise AppError(f"{error} Its entries of {identity.SERVICE} stay, and so does everything else.") from error


def downloaded_bases(home: Home) -> list[tuple[hub_cache.CachedModel, Path]]:
    """Base models that the app downloaded into the cache shared with other programs, and where they are: they stay."""
    used = {model.record.base for model in store.all_models(home)}
    return [
        (cached, hub_cache.repository_folder(cached.repository))
        for cached in hub_cache.all_cached()
        if cached.ours or cached.repository in used
    ]


def _with_inner(one: CreatedPath, there: Sequence[CreatedPath]) -> CreatedPath | None:
    """A path inside another one is removed with it and counted once: on Windows and macOS the folders are nested."""
    if any(other.path in one.path.parents for other in there):
        return None
    inner = [other.what for other in there if one.path in other.path.parents]
    return replace(one, what="; ".join((one.what, *inner)))


def _size(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() else path.stat().st_size


def remove_paths(home: Home, found: Sequence[CreatedPath]) -> int:
    """Remove them and return the bytes freed. Raises AppError: a node runs, or something cannot be removed."""
    home.runtime.mkdir(parents=True, exist_ok=True)
    with NodeLock(home.lock):
        for created in found:
            if created.path == home.runtime:  # the lock is in it, and Windows removes no open file
                continue
            try:
                shutil.rmtree(created.path) if created.path.is_dir() else created.path.unlink()
            except FileNotFoundError:  # inside a folder that was removed before it
                continue
            except OSError as error:
                raise AppError(
                    f"{created.path} could not be removed ({error.strerror}). What came before it is gone."
                ) from error
    shutil.rmtree(home.runtime, ignore_errors=True)
    for folder in {home.config, *(created.path.parent for created in found)}:
        with suppress(OSError):  # it contains something from somebody else
            folder.rmdir()
    return sum(created.size for created in found)
