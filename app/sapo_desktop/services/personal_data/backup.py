"""Everything that is a person's, in one archive; nothing is changed, and a kill leaves no half archive under its name."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop import __version__
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import base_folder, keeping
from sapo_desktop.services.nodes.lock import NodeLock
from sapo_desktop.services.personal_data import archive, contents
from sapo_desktop.services.personal_data.archive import FORMAT, Entry, Manifest
from sapo_swarm.whole_file import opened


@dataclass(frozen=True)
class Saved:
    """An archive. size in bytes; besides: sentences on what lies elsewhere."""

    path: Path
    manifest: Manifest
    size: int
    besides: tuple[str, ...]


def backup(home: Home, path: Path, keys: bool = False) -> Saved:
    """Write the archive, readable by its owner only. keys: with the node's identity, its invite and what it shares there.

    Raises UsageError where the file exists; AppError: a node runs, there is nothing, the disk or the keyring refuses.
    """
    if path.exists():
        raise UsageError(f"{path} exists already: choose another name.")
    home.runtime.mkdir(0o700, parents=True, exist_ok=True)
    try:
        with NodeLock(home.lock), tempfile.TemporaryDirectory() as scratch:
            sources = contents.files(home, keys)
            if keys and (secret := contents.keyring_key(home)):
                sources[contents.IDENTITY] = Path(scratch) / "node.key"
                sources[contents.IDENTITY].write_text(secret + "\n")
            elif keys and contents.IDENTITY not in sources and contents.in_keyring(home):
                raise AppError(
                    "Your node's key is in the system's keyring, which does not give it here. Unlock the keyring, or save "
                    "without --keys."
                )
            if not sources:
                raise AppError("There is nothing of yours here to save.")
            manifest = _manifest(sources)
            keeping.require_room(path.parent, manifest.size + 2048 * len(sources), "The archive needs")
            with opened(path, private=True) as out:
                archive.write(out, manifest, sources)
    except OSError as error:
        raise AppError(
            f"The archive could not be made ({error.strerror or error}). {path} was not written, and nothing was changed."
        ) from error
    return Saved(path, manifest, path.stat().st_size, tuple(_besides(home, keys)))


def _manifest(sources: dict[str, Path]) -> Manifest:
    if len(sources) > archive.MAX_FILES:
        raise AppError(f"An archive holds {archive.MAX_FILES:,} files at most, here are {len(sources):,}.")
    entries = (Entry(name, path.stat().st_size, archive.digest(path)) for name, path in sources.items())
    return Manifest(FORMAT, time.time(), __version__, tuple(entries))


def _besides(home: Home, keys: bool) -> list[str]:
    said = ["Left out: exports and downloaded bases, which can be made again, and experiments of the lab."]
    for folder, names in base_folder.folders(home).items():
        said.append(f"Left out: {folder}, the base of {', '.join(sorted(names))}. Save that folder, too.")
    if not keys:
        said.append("Left out: your node's key and its invite. With them (the archive is a password then): --keys")
    if (home.data / "swarm.sqlite").exists():
        said.append("The swarm that you host has an archive of its own: sapo-desktop swarm export FILE")
    return said
