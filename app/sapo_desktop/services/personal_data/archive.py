"""A backup as a file: a person's data on this machine, as an uncompressed tar whose first member lists all the others."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from sapo_desktop import __version__
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import keeping, mending
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_swarm.protocol.identity import KeyStoreError, node_in_keyring
from sapo_swarm.tasks.own import library
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import on_disk, open_atomic

# A person's data on this machine: each file with its place in an archive, and the rules for such places.
#
#     settings/config.toml     models/FOLDER/...     tasks/NAME/...     ratings/MODEL.jsonl     judged/judges.json
#     runs/ID/...              keys/...              (only where keys are asked for)
#
# Left out: what can be made again (exports, caches, downloaded bases, measurements), half-written files, experiments of the
# lab, tokens of other services, the swarm that this machine hosts (`swarm export` moves it), and every approval of a task's
# code: that is given anew on another machine.

SETTINGS = "settings/config.toml"
JUDGES = "judged/judges.json"
IDENTITY = "keys/node.key"
LONGEST, DEEPEST = 240, 8
"""Limits for a place in an archive: characters, and path parts."""
_PART = re.compile(r"[^\x00-\x1f\x7f<>:\"/\\|?*\ud800-\udfff]{1,120}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_FOLDERS = ("models", "tasks")
_LEFT_OUT = ("exports", "journal.db-shm")


def archive_roots(home: Home) -> dict[str, Path]:
    """The first part of an archive's places, or a whole place -> its path on this machine."""
    return {
        "models": home.models,
        "tasks": home.tasks,
        "ratings": home.data / "ratings",
        SETTINGS: home.settings,
        JUDGES: home.data / "judges.json",
        IDENTITY: home.data / "identity" / "node.key",
        "keys/invite": home.invite,
        "keys/trial": home.invite.with_name("trial"),
        f"keys/{library.FILE}": home.tasks / library.FILE,
    }


def restore_target(home: Home, name: str) -> Path | None:
    """Where an archive's file belongs on this machine; None where it may not be in an archive."""
    roots, parts = archive_roots(home), PurePosixPath(name).parts
    if name in roots:
        return roots[name] if "/" in name else None
    if not _spelled_well(name, parts) or parts[0] not in roots:
        return None
    if parts[0] in _FOLDERS:
        return roots[parts[0]].joinpath(*parts[1:]) if len(parts) > 2 else None
    return roots["ratings"] / parts[1] if len(parts) == 2 and parts[1].endswith(".jsonl") else None


def _spelled_well(name: str, parts: tuple[str, ...]) -> bool:
    """Whether it is a plain relative path on every system that never leaves its folder."""
    if not 1 < len(parts) <= DEEPEST or len(name) > LONGEST or "/".join(parts) != name:
        return False
    good = (_PART.fullmatch(p) and p[-1] not in " ." and not _DEVICE.fullmatch(p) for p in parts)
    return all(good) and not parts[1].startswith(".")


def restore_unit(name: str) -> str:
    """The unit that a file is restored with, all or nothing: its model, its run, its task; else the file itself."""
    parts = PurePosixPath(name).parts
    return "/".join(parts[:2]) if parts[0] in _FOLDERS else name


def is_key(name: str) -> bool:
    """Whether the file is a key: whoever has it can be this node in its swarm."""
    return name.startswith("keys/")


def files_to_archive(home: Home, keys: bool) -> dict[str, Path]:
    """Place in an archive -> file, in order. keys: include the node's identity and its swarm (a key in the keyring is not a
    file)."""
    files = {}
    for name, path in archive_roots(home).items():
        if is_key(name) and not keys:
            continue
        for file in _below(path) if "/" not in name else [path]:
            inside = file.relative_to(path).as_posix()
            full = name if inside == "." else f"{name}/{inside}"
            if _is_file(file) and restore_target(home, full) is not None:
                files[full] = file
    return dict(sorted(files.items()))


def keyring_key(home: Home) -> str:
    """The node's secret key where the system's keyring holds it, else ""."""
    path = archive_roots(home)[IDENTITY]
    try:
        return "" if path.exists() else node_in_keyring(path.parent, path.stem)[1]
    except KeyStoreError:
        return ""


def in_keyring(home: Home) -> bool:
    """Whether the node's key was given to a keyring (keystore leaves the node's id behind)."""
    return archive_roots(home)[IDENTITY].with_suffix(".id").exists()


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        for name in names:
            if name not in _LEFT_OUT and not name.startswith(".") and not name.endswith(".partial"):
                yield Path(root, name)


def _is_file(path: Path) -> bool:
    """Whether it is a regular file: not a link, which may lead anywhere, and not an empty write-ahead log, which every reader
    creates and removes."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size > 0 or not path.name.endswith("-wal"))


# A backup as a file: an uncompressed tar whose first member, manifest.json, lists every other with size and SHA-256.
#
# Archives are read as if a stranger had made them: only plain files at known places, nothing that the manifest does not
# list, nothing larger than it says, and never more in memory than the manifest's size limit allows.

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 32 * 2**20
MAX_FILES = 100_000
_CHUNK = 2**20

Size = Annotated[int, Meta(ge=0, le=2**50)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class ArchiveEntry(msgspec.Struct, frozen=True):
    """A file. name: its place in the archive; size in bytes."""

    name: Annotated[str, Meta(max_length=LONGEST)]
    size: Size
    sha256: Digest


class BackupManifest(msgspec.Struct, frozen=True):
    """What an archive contains. made: Unix time; version: of the app that made it."""

    format: int
    made: float
    version: Annotated[str, Meta(max_length=40)]
    files: Annotated[tuple[ArchiveEntry, ...], Meta(max_length=MAX_FILES)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


class Damaged(AppError):
    """The archive is not a backup, was truncated or changed, or contains what no backup of ours contains."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def write_archive(out: IO[bytes], manifest: BackupManifest, sources: Mapping[str, Path]) -> None:
    """Write the archive. Raises OSError, AppError where a file changed since the manifest was made."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        text = msgspec.json.encode(manifest)
        tar.addfile(_member(MANIFEST, len(text), manifest.made), io.BytesIO(text))
        for entry in manifest.files:
            path = sources[entry.name]
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                hashed = _Hashed(file)
                if status.st_size == entry.size:
                    tar.addfile(_member(entry.name, entry.size, status.st_mtime), hashed)
                if hashed.hexdigest() != entry.sha256:
                    raise AppError(f"{path} changed while it was saved. End what writes to it, then try again.")


def _member(name: str, size: int, changed: float) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, int(changed), 0o600
    return member


class _Bounded(io.RawIOBase):
    """A file of which at most a manifest's size is read at a time: a header that claims gigabytes gets none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_MANIFEST:
            raise Damaged("The archive has a header that is too large.")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True


@contextmanager
def opened_archive(path: Path, home: Home) -> Iterator[tuple[BackupManifest, tarfile.TarFile]]:
    """The archive, positioned after its manifest, whose names and sizes are checked. Raises Damaged, AppError, OSError."""
    with (
        path.open("rb") as file,
        _damage_in_words(path),
        tarfile.open(fileobj=_Bounded(file), mode="r:") as tar,
    ):
        first = tar.next()
        if first is None or first.name != MANIFEST or not _plain(first) or first.size > MAX_MANIFEST:
            raise Damaged(f"{path} is no backup of sapo-desktop: it does not begin with {MANIFEST}.")
        text = tar.extractfile(first)
        assert text is not None
        yield _checked(msgspec.json.decode(text.read(MAX_MANIFEST)), home), tar


@contextmanager
def _damage_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, OverflowError, RecursionError, MemoryError, *UNREADABLE) as error:
        raise Damaged(
            f"{path} is no backup of sapo-desktop, or it is damaged ({error}). Nothing was restored."
        ) from error


def _checked(read: object, home: Home) -> BackupManifest:
    made_by = read.get("format") if isinstance(read, dict) else None
    if isinstance(made_by, int) and made_by > FORMAT:
        raise AppError("The archive was made by a newer version of sapo-desktop. Update it to restore this one.")
    manifest = msgspec.convert(read, BackupManifest)
    names = [entry.name for entry in manifest.files]
    if manifest.format != FORMAT or len({name.casefold() for name in names}) < len(names):
        raise Damaged("The archive names a file twice, or has no known format. Nothing was restored.")
    folders = {parent.as_posix().casefold() for name in names for parent in Path(name).parents}
    for name in names:
        if restore_target(home, name) is None or name.casefold() in folders:
            raise Damaged(f"The archive holds {name[:80]!r}, which no backup holds. Nothing was restored.")
    return manifest


def _plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse()


def extract_archive(tar: tarfile.TarFile, manifest: BackupManifest, folder: Path) -> None:
    """Extract every file into a folder that only we use, checking each. Raises Damaged, TarError, OSError."""
    entries = {entry.name: entry for entry in manifest.files}
    while (member := tar.next()) is not None:
        entry = entries.pop(member.name, None)
        if entry is None or not _plain(member) or member.size != entry.size:
            raise Damaged(f"The archive's {member.name[:80]!r} is not what its manifest says. Nothing was restored.")
        if hasattr(
            tarfile, "data_filter"
        ):  # a second safeguard; Python 3.11.0 to 3.11.3 have only the first, which is narrower
            tarfile.data_filter(member, str(folder))
        _copy(tar, member, entry, folder / entry.name)
    if entries:
        raise Damaged(f"The archive was cut: {min(entries)[:80]!r} is missing. Nothing was restored.")


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, entry: ArchiveEntry, target: Path) -> None:
    source, digest = tar.extractfile(member), hashlib.sha256()
    assert source is not None
    target.parent.mkdir(0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while data := source.read(_CHUNK):
            digest.update(data)
            file.write(data)
        file.flush()
        on_disk(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise Damaged(f"The archive's {entry.name[:80]!r} is damaged: its SHA-256 differs. Nothing was restored.")
    os.utime(target, (max(0, min(member.mtime, 2**32)),) * 2)


# All of a person's data in one archive; nothing is changed, and a kill leaves no half-written archive under its name.


@dataclass(frozen=True)
class BackupResult:
    """An archive. size in bytes; besides: sentences about what is stored elsewhere."""

    path: Path
    manifest: BackupManifest
    size: int
    besides: tuple[str, ...]


def create_backup(home: Home, path: Path, keys: bool = False) -> BackupResult:
    """Write the archive, readable by its owner only. keys: include the node's identity, its invite and what it shares there.

    Raises UsageError where the file exists; AppError: a node runs, there is nothing to save, the disk or the keyring refuses.
    """
    if path.exists():
        raise UsageError(f"{path} exists already: choose another name.")
    home.runtime.mkdir(0o700, parents=True, exist_ok=True)
    try:
        with NodeLock(home.lock), tempfile.TemporaryDirectory() as scratch:
            sources = files_to_archive(home, keys)
            if keys and (secret := keyring_key(home)):
                sources[IDENTITY] = Path(scratch) / "node.key"
                sources[IDENTITY].write_text(secret + "\n")
            elif keys and IDENTITY not in sources and in_keyring(home):
                raise AppError(
                    "Your node's key is in the system's keyring, which does not give it here. Unlock the keyring, or save "
                    "without --keys."
                )
            if not sources:
                raise AppError("There is nothing of yours here to save.")
            manifest = _manifest(sources)
            keeping.require_room(path.parent, manifest.size + 2048 * len(sources), "The archive needs")
            with open_atomic(path, private=True) as out:
                write_archive(out, manifest, sources)
    except OSError as error:
        raise AppError(
            f"The archive could not be made ({error.strerror or error}). {path} was not written, and nothing was changed."
        ) from error
    return BackupResult(path, manifest, path.stat().st_size, tuple(_besides(home, keys)))


def _manifest(sources: dict[str, Path]) -> BackupManifest:
    if len(sources) > MAX_FILES:
        raise AppError(f"An archive holds {MAX_FILES:,} files at most, here are {len(sources):,}.")
    entries = (ArchiveEntry(name, path.stat().st_size, file_sha256(path)) for name, path in sources.items())
    return BackupManifest(FORMAT, time.time(), __version__, tuple(entries))


def _besides(home: Home, keys: bool) -> list[str]:
    sentences = ["Left out: exports and downloaded bases, which can be made again, and experiments of the lab."]
    for base, names in mending.models_by_base_folder(home).items():
        kind = "file" if mending.is_file_name(base) else "folder"
        sentences.append(f"Left out: {base}, the base of {', '.join(sorted(names))}. Save that {kind}, too.")
    if not keys:
        sentences.append("Left out: your node's key and its invite. With them (the archive is a password then): --keys")
    if (home.data / "swarm.sqlite").exists():
        sentences.append("The swarm that you host has an archive of its own: sapo-desktop swarm export FILE")
    return sentences
