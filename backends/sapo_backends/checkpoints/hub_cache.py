"""The hub and the caches: which hub is asked, with which token, what is there already in the cache that all of a person's
programs share, and the app's own folder for what can be made again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

# Weights in one file or several: which files a folder should hold, and which of them belong together.

_SHARD = re.compile(r"(.*-)(\d{1,6})-of-(0*[1-9]\d{0,3})(\.safetensors)")


def one_set(names: Collection[str]) -> set[str]:
    """The files with a model's weights, each weight once: of two sets the one that transformers reads, and no adapter.
    The "consolidated" copy that some vendors add counts only if there is no other set."""
    if "model.safetensors" in names:
        return {"model.safetensors"}
    weights = {name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")}
    return {name for name in weights if not name.startswith("consolidated")} or weights


def missing_weight_files(folder: Path, here: Collection[str]) -> list[str]:
    """Weight files that are missing, by the index or, without one, by the shard count in the names of the others.

    here: names of the weight files in the folder.
    """
    if not here or "model.safetensors" in here:
        return []
    promised = _in_index(folder)
    if not promised and (of := _SHARD.fullmatch(min(here))):
        name, number, count, end = of.groups()
        first = min(int(number), 1)  # some count from 0
        promised = {f"{name}{first + i:0{len(number)}}-of-{count}{end}" for i in range(int(count))}
    return sorted(promised - set(here))


def _in_index(folder: Path) -> set[str]:
    """File names listed in the index; empty without a readable index."""
    try:
        content = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return {str(name) for name in content["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return set()


# Which hub is asked, and with which token. Environment variables are those of huggingface_hub: HF_ENDPOINT (a mirror),
# HF_HUB_OFFLINE, HF_TOKEN.

Tokens = Callable[[], str | None]
_sources: list[Tokens] = []


def set_token_source(source: Tokens) -> None:
    """Where to look for a person's token if the environment has none. Called only after a hub refused an anonymous
    request, so that no keyring is opened for a public model."""
    _sources[:] = [source]


def hub_token() -> str | None:
    """The person's token, None if there is none."""
    configured = os.environ.get("HF_TOKEN", "").strip()
    return configured or next((token for source in _sources if (token := source())), None)


def hub_endpoint() -> str:
    """The hub's address, without a trailing slash."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co").rstrip("/")


def is_hub_offline() -> bool:
    """Whether the person has forbidden network access."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def why_away(seconds: float = 1.5) -> str:
    """Why nothing can be downloaded now; "" if the hub answers, whatever the answer. Blocks for at most `seconds`."""
    if is_hub_offline():
        return "HF_HUB_OFFLINE forbids the network"
    answers: list[str] = []
    # a separate daemon thread: a name look-up may take half a minute, and nothing should wait for it, not even exit
    asking = threading.Thread(target=lambda: answers.append(_asked(seconds)), name="ask-the-hub", daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else "the hub does not answer"


def _asked(seconds: float) -> str:
    import asyncio

    import aiohttp

    async def ask() -> str:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            try:
                async with session.head(hub_endpoint(), allow_redirects=False):
                    return ""
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return "the hub cannot be reached"

    return asyncio.run(ask())


# The cache that all programs of one person share, laid out as huggingface_hub lays it out:
#
# models--OWNER--NAME/refs/main            the commit that was downloaded last, by whatever program
# models--OWNER--NAME/refs/sapo-desktop    the commit that this app uses
# models--OWNER--NAME/snapshots/COMMIT/    the files by name: links into blobs/, or the files where links are not allowed
# models--OWNER--NAME/blobs/DIGEST         the bytes; DIGEST.incomplete is a download that can go on

REVISION, OURS = "main", "sapo-desktop"
PARTIAL = ".incomplete"
LOCK = ".download.lock"
"""Held while this app downloads a model; it stays afterwards, which shows that this app downloaded it."""


def hub_cache_folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, or hub/ under HF_HOME, or under the person's cache folder."""
    if direct := os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(direct))
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.path.expanduser(os.environ.get("HF_HOME") or f"{caches}/huggingface"), "hub")


def repository_folder(repository: str) -> Path:
    """The cache folder of a repository."""
    return hub_cache_folder() / f"models--{repository.replace('/', '--')}"


def blob_path(repository: str, digest: str) -> Path:
    """The file with the bytes of that digest."""
    return repository_folder(repository) / "blobs" / digest


def find_snapshot(repository: str) -> Path | None:
    """The folder of a model that is completely cached, else None. Tries the commit that this app already uses, then the
    newest download, then any other, since another program may have started on a newer commit without completing it."""
    snapshots = repository_folder(repository) / "snapshots"
    commits = list(filter(None, (_commit(repository, ref) for ref in (OURS, REVISION))))
    if not commits:
        return None
    looks = sorted(snapshots.glob("*/config.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    snapshot_folders = (*(snapshots / commit for commit in commits), *(look.parent for look in looks))
    return next(filter(is_complete_model, snapshot_folders), None)


def _commit(repository: str, ref: str) -> str:
    """The commit that a ref names, "" if there is none."""
    try:
        commit = (repository_folder(repository) / "refs" / ref).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if "/" not in commit else ""


def pin_commit(repository: str, commit: str) -> None:
    """Use that commit from now on: when another program fetches a newer one, with another tokenizer or chat template,
    the base of what was trained here must not change."""
    if _commit(repository, OURS) != commit:
        with contextlib.suppress(OSError):  # another account's cache
            (repository_folder(repository) / "refs" / OURS).write_text(commit, "ascii")


def looked_at(repository: str) -> Path | None:
    """The folder of a model, which may hold only what inspecting the hub's repository brought; None if it was never
    inspected."""
    looks = sorted(
        repository_folder(repository).glob("snapshots/*/config.json"), key=lambda file: file.lstat().st_mtime
    )
    return find_snapshot(repository) or (looks[-1].parent if looks else None)


def is_complete_model(found: Path) -> bool:
    """Whether a folder has its config, its tokenizer and every weight file."""
    weights = {
        file.name for file in found.glob("*.safetensors") if file.is_file() and not file.name.startswith("adapter_")
    }
    settings = all((found / name).is_file() for name in ("config.json", "tokenizer.json"))
    return settings and bool(weights) and not missing_weight_files(found, weights)


def add_to_snapshot(repository: str, commit: str, name: str, digest: str) -> Path:
    """Make a finished blob a file of the snapshot. Raises OSError."""
    file = repository_folder(repository) / "snapshots" / commit / name
    file.parent.mkdir(parents=True, exist_ok=True)
    source = blob_path(repository, digest)
    file.unlink(missing_ok=True)
    try:
        file.symlink_to(os.path.relpath(source, file.parent))
    except OSError:  # Windows without the right to make links
        source.replace(file)
    return file


def update_main_ref(repository: str, commit: str) -> None:
    """Make this the current commit, readable for everyone who may read the cache. Raises OSError."""
    ref = repository_folder(repository) / "refs" / REVISION
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit, "ascii")
    mode = hub_cache_folder().stat().st_mode
    for path in (repository_folder(repository), *repository_folder(repository).rglob("*")):
        if path.is_symlink():
            continue
        with contextlib.suppress(OSError):  # owned by another account
            path.chmod(mode & (0o7777 if path.is_dir() else 0o666))


@dataclass(frozen=True, slots=True)
class CachedModel:
    """repository: its id. bytes: on the disk. complete: usable without a network. ours: this app downloaded it."""

    repository: str
    bytes: int
    complete: bool
    ours: bool


def all_cached() -> list[CachedModel]:
    """The cached models that have weights, complete or partial."""
    models = []
    for place in sorted(hub_cache_folder().glob("models--*--*")):
        repository = place.name.removeprefix("models--").replace("--", "/", 1)
        size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file() and not f.is_symlink())
        whole = find_snapshot(repository) is not None
        if whole or any((place / "blobs").glob(f"*{PARTIAL}")):
            models.append(CachedModel(repository, size, whole, (place / LOCK).exists()))
    return models


def cache_folder() -> Path:
    """The app's own folder, for files that can be made again; SAPO_HOME moves it like everything else."""
    import platformdirs

    root = os.environ.get("SAPO_HOME")
    return Path(root).expanduser() / "cache" if root else platformdirs.user_cache_path("sapo-desktop", appauthor=False)
