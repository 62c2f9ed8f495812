"""Everything that the app made on this machine, and its removal. The program itself is pip's or the system's to remove."""

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
"""Files of the configuration folder, which may be a folder of the person's own (SAPO_HOME), and what they are. Each may lie
there half written, too."""
_DATA = {
    "tasks": "your own tasks",
    "ratings": "answers that you rated",
    "identity": "your node's identity",
    "judges.json": "how far judges agree with you",
    "swarm.sqlite": "the swarm that you host",
}
"""What lies in the data folder beside the models."""


@dataclass(frozen=True)
class CreatedPath:
    """A file or folder that the app made. size in bytes; what: in words."""

    path: Path
    size: int
    what: str


def find_created_paths(home: Home) -> list[CreatedPath]:
    """What is there, the largest part first. Nothing outside the app's own folders is looked at."""
    models = len(store.taken_model_names(home))
    count = f"{models} model{'' if models == 1 else 's'} with weights, history and exports"
    beside = [what for name, what in _DATA.items() if (home.data / name).exists()]
    found = [
        (home.data, "; ".join((count, *beside))),
        (home.cache, "measurements, indexes of rollouts and converted base models, which can be made again"),
        (home.logs, "logs"),
        (home.runtime, "sockets"),
        *((home.config / name, what) for name, what in _SETTINGS.items()),
        *(
            (path, f"{what}, half written")
            for name, what in _SETTINGS.items()
            for path in _partials(home.config / name)
        ),
    ]
    there = [CreatedPath(path, _size(path), what) for path, what in found if path.exists()]
    return sorted(filter(None, (_with_inner(one, there) for one in there)), key=lambda one: -one.size)


def keyring_entries(home: Home) -> tuple[dict[str, str], str]:
    """What the system's keyring holds of this home, entry -> in words; and why that is not known, "" where it is. Entries of
    other homes of the account are not looked at."""
    kept = ((name, identity.entry_named(home.config, name)) for name in (tokens.NAME, judging.KEY))
    texts = {entry: _SETTINGS[f"{name}.secret"] for name, entry in kept if entry}
    try:
        node, _ = identity.node_in_keyring(home.data / "identity")
        found = {entry: texts[entry] for entry in identity.in_keyring(list(texts))}
        return ({node: "your node's key"} if node else {}) | found, ""
    except identity.KeyStoreError as error:
        return {}, f"{error} Look there yourself for entries of {identity.SERVICE}."


def remove_keyring_entries(names: Iterable[str]) -> None:
    """Remove these entries from the keyring. Raises AppError."""
    try:
        identity.delete_keyring_entries(list(names))
    except identity.KeyStoreError as error:
        raise AppError(f"{error} Its entries of {identity.SERVICE} stay, and so does everything else.") from error


def downloaded_bases(home: Home) -> list[tuple[hub_cache.CachedModel, Path]]:
    """Base models that the app downloaded into the cache that other programs read, too, and where: they stay."""
    used = {model.record.base for model in store.all_models(home)}
    return [
        (one, hub_cache.repository_folder(one.repository))
        for one in hub_cache.all_cached()
        if one.ours or one.repository in used
    ]


def _partials(path: Path) -> set[Path]:
    """Under what names the file is while it is written, by earlier versions too."""
    return {*half_written(path), path.with_suffix(".partial"), path.with_name(f"{path.name}.partial")}


def _with_inner(one: CreatedPath, there: Sequence[CreatedPath]) -> CreatedPath | None:
    """What lies in another part goes with it and is counted once: on Windows and macOS the folders lie in one another."""
    if any(other.path in one.path.parents for other in there):
        return None
    inner = [other.what for other in there if one.path in other.path.parents]
    return replace(one, what="; ".join((one.what, *inner)))


def _size(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() else path.stat().st_size


def remove_paths(home: Home, found: Sequence[CreatedPath]) -> int:
    """Remove them; how many bytes that freed. Raises AppError: a node runs, or something cannot be removed."""
    home.runtime.mkdir(parents=True, exist_ok=True)
    with NodeLock(home.lock):
        for one in found:
            if one.path == home.runtime:  # the lock lies in it, and Windows removes no open file
                continue
            try:
                shutil.rmtree(one.path) if one.path.is_dir() else one.path.unlink()
            except FileNotFoundError:  # inside a folder that went before it
                continue
            except OSError as error:
                raise AppError(
                    f"{one.path} could not be removed ({error.strerror}). What came before it is gone."
                ) from error
    shutil.rmtree(home.runtime, ignore_errors=True)
    for folder in {home.config, *(one.path.parent for one in found)}:
        with suppress(OSError):  # it holds something of somebody else
            folder.rmdir()
    return sum(one.size for one in found)
