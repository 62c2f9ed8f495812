"""What is a person's on this machine: each file with its place in an archive, and how such a place is spelled.

    settings/config.toml     models/FOLDER/...     tasks/NAME/...     ratings/MODEL.jsonl     judged/judges.json
    runs/ID/...              keys/...              (only where keys are asked for)

Left out: what can be made again (exports, caches, downloaded bases, measurements), what is half written, experiments of the
lab, tokens of other services, the swarm that this machine hosts (`swarm export` moves it), and every yes to a task's code:
that is said anew on another machine.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sapo_desktop.paths import Home
from sapo_swarm.protocol.identity import KeyStoreError, node_in_keyring
from sapo_swarm.tasks.own import library

SETTINGS = "settings/config.toml"
JUDGES = "judged/judges.json"
IDENTITY = "keys/node.key"
LONGEST, DEEPEST = 240, 8
"""Of a place in an archive: characters, and parts."""
_PART = re.compile(r"[^\x00-\x1f\x7f<>:\"/\\|?*\ud800-\udfff]{1,120}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_FOLDERS = ("models", "runs", "tasks")
_LEFT_OUT = ("exports", "journal.db-shm")


def places(home: Home) -> dict[str, Path]:
    """The first part of an archive's places, or a whole place -> where it lies on this machine."""
    return {
        "models": home.models,
        "runs": home.runs,
        "tasks": home.tasks,
        "ratings": home.data / "ratings",
        SETTINGS: home.settings,
        JUDGES: home.data / "judges.json",
        IDENTITY: home.data / "identity" / "node.key",
        "keys/invite": home.invite,
        "keys/trial": home.invite.with_name("trial"),
        f"keys/{library.FILE}": home.tasks / library.FILE,
    }


def place(home: Home, name: str) -> Path | None:
    """Where an archive's file belongs on this machine; None where it may not be in an archive."""
    known, parts = places(home), PurePosixPath(name).parts
    if name in known:
        return known[name] if "/" in name else None
    if not _spelled_well(name, parts) or parts[0] not in known:
        return None
    if parts[0] in _FOLDERS:
        return known[parts[0]].joinpath(*parts[1:]) if len(parts) > 2 else None
    return known["ratings"] / parts[1] if len(parts) == 2 and parts[1].endswith(".jsonl") else None


def _spelled_well(name: str, parts: tuple[str, ...]) -> bool:
    """Only what is a plain path on every system; never one that leaves its folder."""
    if not 1 < len(parts) <= DEEPEST or len(name) > LONGEST or "/".join(parts) != name:
        return False
    good = (_PART.fullmatch(p) and p[-1] not in " ." and not _DEVICE.fullmatch(p) for p in parts)
    return all(good) and not parts[1].startswith(".")


def item(name: str) -> str:
    """What a file is restored with, or not at all: its model, its run, its task; else itself."""
    parts = PurePosixPath(name).parts
    return "/".join(parts[:2]) if parts[0] in _FOLDERS else name


def is_key(name: str) -> bool:
    """Whoever has it can be this node in its swarm."""
    return name.startswith("keys/")


def files(home: Home, keys: bool) -> dict[str, Path]:
    """Place in an archive -> file, in order. keys: the node's identity and its swarm, too (a key of the keyring is no file)."""
    found = {}
    for name, path in places(home).items():
        if is_key(name) and not keys:
            continue
        for one in _below(path) if "/" not in name else [path]:
            inside = one.relative_to(path).as_posix()
            full = name if inside == "." else f"{name}/{inside}"
            if _is_file(one) and place(home, full) is not None:
                found[full] = one
    return dict(sorted(found.items()))


def keyring_key(home: Home) -> str:
    """The node's secret key where the system's keyring holds it, else ""."""
    path = places(home)[IDENTITY]
    try:
        return "" if path.exists() else node_in_keyring(path.parent, path.stem)[1]
    except KeyStoreError:
        return ""


def in_keyring(home: Home) -> bool:
    """The node's key was given to a keyring (keystore leaves its node's id behind)."""
    return places(home)[IDENTITY].with_suffix(".id").exists()


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        for name in names:
            if name not in _LEFT_OUT and not name.startswith(".") and not name.endswith(".partial"):
                yield Path(root, name)


def _is_file(path: Path) -> bool:
    """Not a link, which may lead anywhere; not an empty journal of changes, which every reader makes and removes."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_size > 0 or not path.name.endswith("-wal"))
