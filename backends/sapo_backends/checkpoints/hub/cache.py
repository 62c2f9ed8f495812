"""The cache that all programs of one person share, laid out as huggingface_hub lays it out:

models--OWNER--NAME/refs/main            the commit that was downloaded last, by whatever program
models--OWNER--NAME/refs/sapo-desktop    the commit that this app uses
models--OWNER--NAME/snapshots/COMMIT/    the files by name: links into blobs/, or the files where links are not allowed
models--OWNER--NAME/blobs/DIGEST         the bytes; DIGEST.incomplete is a download that can go on
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from sapo_backends.checkpoints.shards import missing

REVISION, OURS = "main", "sapo-desktop"
PARTIAL = ".incomplete"
LOCK = ".download.lock"
"""Held while this app downloads a model; it stays, which tells whose download it was."""


def folder() -> Path:
    """Where it lies: HF_HUB_CACHE, or hub/ under HF_HOME, or under the person's cache folder."""
    if direct := os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(direct))
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.path.expanduser(os.environ.get("HF_HOME") or f"{caches}/huggingface"), "hub")


def of(repository: str) -> Path:
    """The folder of a repository."""
    return folder() / f"models--{repository.replace('/', '--')}"


def blob(repository: str, digest: str) -> Path:
    """The bytes with that digest."""
    return of(repository) / "blobs" / digest


def snapshot(repository: str) -> Path | None:
    """The folder of a model that is here with everything it needs, else None: of the commit that this app uses already, else
    of the newest download, else, where another program has met a newer commit of which not everything is here, of any."""
    snapshots = of(repository) / "snapshots"
    commits = list(filter(None, (_commit(repository, ref) for ref in (OURS, REVISION))))
    if not commits:
        return None
    looks = sorted(snapshots.glob("*/config.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    found = (*(snapshots / commit for commit in commits), *(look.parent for look in looks))
    return next(filter(complete, found), None)


def _commit(repository: str, ref: str) -> str:
    """The commit that a ref names, "" without one."""
    try:
        commit = (of(repository) / "refs" / ref).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if "/" not in commit else ""


def pin(repository: str, commit: str) -> None:
    """This app uses that commit from now on: another program that meets a newer one, with another tokenizer or chat template,
    must not change what a model was trained on."""
    if _commit(repository, OURS) != commit:
        with contextlib.suppress(OSError):  # another account's cache
            (of(repository) / "refs" / OURS).write_text(commit, "ascii")


def looked_at(repository: str) -> Path | None:
    """The folder of a model, of which perhaps nothing is here but what a look at the hub brings; None before one."""
    looks = sorted(of(repository).glob("snapshots/*/config.json"), key=lambda file: file.lstat().st_mtime)
    return snapshot(repository) or (looks[-1].parent if looks else None)


def complete(found: Path) -> bool:
    """Whether a folder has its config, its tokenizer and every file of weights."""
    weights = {
        file.name for file in found.glob("*.safetensors") if file.is_file() and not file.name.startswith("adapter_")
    }
    settings = all((found / name).is_file() for name in ("config.json", "tokenizer.json"))
    return settings and bool(weights) and not missing(found, weights)


def publish(repository: str, commit: str, name: str, digest: str) -> Path:
    """Make a finished blob a file of the snapshot. Raises OSError."""
    file = of(repository) / "snapshots" / commit / name
    file.parent.mkdir(parents=True, exist_ok=True)
    source = blob(repository, digest)
    file.unlink(missing_ok=True)
    try:
        file.symlink_to(os.path.relpath(source, file.parent))
    except OSError:  # Windows without the right to make links
        source.replace(file)
    return file


def refer(repository: str, commit: str) -> None:
    """The commit that counts from now on, readable for whoever may read the cache. Raises OSError."""
    ref = of(repository) / "refs" / REVISION
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit, "ascii")
    mode = folder().stat().st_mode
    for path in (of(repository), *of(repository).rglob("*")):
        if path.is_symlink():
            continue
        with contextlib.suppress(OSError):  # another account's
            path.chmod(mode & (0o7777 if path.is_dir() else 0o666))


@dataclass(frozen=True, slots=True)
class Cached:
    """repository: its id. bytes: on the disk. complete: it can be used without a network. ours: this app downloaded it."""

    repository: str
    bytes: int
    complete: bool
    ours: bool


def all_cached() -> list[Cached]:
    """The models in the cache that have weights, or a part of them."""
    found = []
    for place in sorted(folder().glob("models--*--*")):
        repository = place.name.removeprefix("models--").replace("--", "/", 1)
        size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file() and not f.is_symlink())
        whole = snapshot(repository) is not None
        if whole or any((place / "blobs").glob(f"*{PARTIAL}")):
            found.append(Cached(repository, size, whole, (place / LOCK).exists()))
    return found
