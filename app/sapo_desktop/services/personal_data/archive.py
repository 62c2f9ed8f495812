"""A backup as a file: an uncompressed tar whose first member, manifest.json, names every other with size and SHA-256.

Archives are read as if a stranger had made them: only plain files under known places, nothing beside the manifest, nothing
larger than it says, and no piece of the file is held in memory that the manifest's bound does not cover.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.personal_data import contents
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import on_disk

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 32 * 2**20
MAX_FILES = 100_000
_CHUNK = 2**20

Size = Annotated[int, Meta(ge=0, le=2**50)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Entry(msgspec.Struct, frozen=True):
    """A file. name: its place in the archive; size in bytes."""

    name: Annotated[str, Meta(max_length=contents.LONGEST)]
    size: Size
    sha256: Digest


class Manifest(msgspec.Struct, frozen=True):
    """What an archive holds. made: Unix time; version: of the app that made it."""

    format: int
    made: float
    version: Annotated[str, Meta(max_length=40)]
    files: Annotated[tuple[Entry, ...], Meta(max_length=MAX_FILES)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


class Damaged(AppError):
    """The archive is no backup, was cut or changed, or holds what none of ours holds."""


def digest(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def write(out: IO[bytes], manifest: Manifest, sources: Mapping[str, Path]) -> None:
    """The archive. Raises OSError, AppError where a file changed since the manifest was made."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        text = msgspec.json.encode(manifest)
        tar.addfile(_member(MANIFEST, len(text), manifest.made), io.BytesIO(text))
        for entry in manifest.files:
            path = sources[entry.name]
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                read = _Hashed(file)
                if found.st_size == entry.size:
                    tar.addfile(_member(entry.name, entry.size, found.st_mtime), read)
                if read.hexdigest() != entry.sha256:
                    raise AppError(f"{path} changed while it was saved. End what writes to it, then try again.")


def _member(name: str, size: int, changed: float) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.mtime, found.mode = size, int(changed), 0o600
    return found


class _Bounded(io.RawIOBase):
    """A file of which nobody reads more than a manifest at a time: a header that claims gigabytes gets none."""

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
def opened(path: Path, home: Home) -> Iterator[tuple[Manifest, tarfile.TarFile]]:
    """The archive after its manifest, whose names and sizes are checked. Raises Damaged, AppError, OSError."""
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


def _checked(read: object, home: Home) -> Manifest:
    made_by = read.get("format") if isinstance(read, dict) else None
    if isinstance(made_by, int) and made_by > FORMAT:
        raise AppError("The archive was made by a newer version of sapo-desktop. Update it to restore this one.")
    manifest = msgspec.convert(read, Manifest)
    names = [entry.name for entry in manifest.files]
    if manifest.format != FORMAT or len({name.casefold() for name in names}) < len(names):
        raise Damaged("The archive names a file twice, or has no known format. Nothing was restored.")
    folders = {parent.as_posix().casefold() for name in names for parent in Path(name).parents}
    for name in names:
        if contents.place(home, name) is None or name.casefold() in folders:
            raise Damaged(f"The archive holds {name[:80]!r}, which no backup holds. Nothing was restored.")
    return manifest


def _plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse()


def unpack(tar: tarfile.TarFile, manifest: Manifest, folder: Path) -> None:
    """Every file into a folder that is ours alone, each checked. Raises Damaged, TarError, OSError."""
    wanted = {entry.name: entry for entry in manifest.files}
    while (member := tar.next()) is not None:
        entry = wanted.pop(member.name, None)
        if entry is None or not _plain(member) or member.size != entry.size:
            raise Damaged(f"The archive's {member.name[:80]!r} is not what its manifest says. Nothing was restored.")
        if hasattr(
            tarfile, "data_filter"
        ):  # a second lock; Python 3.11.0 to 3.11.3 have only the first, which is narrower
            tarfile.data_filter(member, str(folder))
        _copy(tar, member, entry, folder / entry.name)
    if wanted:
        raise Damaged(f"The archive was cut: {min(wanted)[:80]!r} is missing. Nothing was restored.")


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, target: Path) -> None:
    source, seen = tar.extractfile(member), hashlib.sha256()
    assert source is not None
    target.parent.mkdir(0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while data := source.read(_CHUNK):
            seen.update(data)
            file.write(data)
        file.flush()
        on_disk(file.fileno())
    if seen.hexdigest() != entry.sha256:
        raise Damaged(f"The archive's {entry.name[:80]!r} is damaged: its SHA-256 differs. Nothing was restored.")
    os.utime(target, (max(0, min(member.mtime, 2**32)),) * 2)
