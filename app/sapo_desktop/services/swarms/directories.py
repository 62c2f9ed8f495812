"""The directories of swarms in the settings: asked rarely, cached on the disk, readable without a network."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.interface import ListedSwarm, SwarmDirectory
from sapo_desktop.settings import editing
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.directory import (
    MAX_BYTES,
    BadDirectory,
    DirectoryAddress,
    DirectoryEntry,
    SwarmList,
    fetch_directory,
    parse_address,
    verify_directory,
)
from sapo_swarm.protocol.invite import means_this_machine, parse_invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

# Their hosts are asked only when somebody looks, and not again for some hours once a list was read.

KEY = "swarm.directories"
REFRESH_S = 6 * 3600.0
MOST = 16
"""Directories that are read at most."""


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy on the disk: the file as read at this Unix time."""

    read: float
    data: bytes


async def read_directories(
    home: Home, fresh: bool = False, wall: Callable[[], float] = time.time
) -> tuple[SwarmDirectory, ...]:
    """What they list, in the order of the settings. Raises UsageError, AppError where the settings cannot be read."""
    lines = (await asyncio.to_thread(settings.load_settings, home.settings)).swarm.directories
    return tuple(await asyncio.gather(*(_look(home, line, fresh, wall) for line in lines[:MOST])))


def follow_directory(home: Home, line: str) -> None:
    """Search this directory too from now on. Raises UsageError, AppError."""
    directories = settings.load_settings(home.settings).swarm.directories
    if len(directories) >= MOST:
        raise UsageError(f"There are {MOST} directories already. Take one out: sapo-desktop config set {KEY} …")
    line = line.strip()
    try:
        parse_address(line)
    except BadDirectory as error:
        raise UsageError(str(error)) from error
    if line not in directories:
        editing.change_setting(home.settings, KEY, ",".join((*directories, line)))


async def _look(home: Home, line: str, fresh: bool, wall: Callable[[], float]) -> SwarmDirectory:
    """One directory: from its host, else from the copy; else why there is nothing."""
    try:
        address = parse_address(line)
    except BadDirectory as error:
        return SwarmDirectory(safe_text(line, 60, lines=False), note=str(error))
    path, now = _path(home, address), wall()
    copy = await asyncio.to_thread(_kept, path)
    current = _sound(copy, address, now)
    if copy is not None and current is not None and not fresh and 0 <= now - copy.read < REFRESH_S:
        return _shown(address, current, copy.read)
    try:
        data = await fetch_directory(address)
        listing = verify_directory(data, address.key, now)
        newest = _sound(copy, address, copy.read) if copy is not None else None  # expired or not
        if newest is not None and listing.issued < newest.issued:
            raise BadDirectory("Its host shows an older list than the one read before.")
    except BadDirectory as error:
        if current is not None and copy is not None:
            return _shown(address, current, copy.read, str(error))
        return SwarmDirectory(display_address(address), note=str(error))
    note = await asyncio.to_thread(_keep, path, _Kept(now, data))
    return _shown(address, listing, now, note)


def display_address(address: DirectoryAddress) -> str:
    """Where it is, as text that is safe to show."""
    return safe_text(address.url.partition("://")[2], 60, lines=False)


def is_here(address: DirectoryAddress) -> bool:
    """Whether it is on this machine."""
    return is_loopback(address.host)


def _path(home: Home, address: DirectoryAddress) -> Path:
    return home.cache / "directories" / hashlib.sha256(str(address).encode()).hexdigest()[:24]


def _kept(path: Path) -> _Kept | None:
    try:
        with path.open("rb") as file:
            return msgspec.msgpack.decode(file.read(MAX_BYTES + 1024), type=_Kept)
    except (OSError, *UNREADABLE):
        return None


def _sound(kept: _Kept | None, address: DirectoryAddress, at: float) -> SwarmList | None:
    """The copy's list if it was valid at this Unix time, checked anew: the disk is no more to be trusted than the network."""
    if kept is None:
        return None
    try:
        return verify_directory(kept.data, address.key, at)
    except BadDirectory:
        return None


def _keep(path: Path, kept: _Kept) -> str:
    """Store a copy. Returns why there is none, "" where there is one: a full disk is no reason to show nothing."""
    try:
        write_atomically(path, msgspec.msgpack.encode(kept))
    except OSError as error:
        return f"No copy of it could be kept ({error.strerror})."
    return ""


def _shown(address: DirectoryAddress, listing: SwarmList, read: float, note: str = "") -> SwarmDirectory:
    swarms = tuple(listed_swarm(entry, is_here(address)) for entry in listing.swarms)
    return SwarmDirectory(display_address(address), safe_text(listing.name, 60, lines=False), swarms, read, note)


def listed_swarm(entry: DirectoryEntry, here: bool) -> ListedSwarm:
    """An entry as people see it. here: the directory is on this machine; only such a directory may point a reader to this
    machine."""
    invite = parse_invite(entry.join) if entry.join else None
    join, why = "" if invite is None else str(invite), ""  # re-rendered here: nothing else of it reaches a shell
    if invite is not None and means_this_machine(invite.host) and not here:
        join, why = "", "its address is good on its host's own machine only"
    elif invite is None:
        why = (
            f"ask for an invite: {entry.ask}"
            if entry.ask
            else "it needs an invite, and the list does not say whom to ask"
        )
    text = (safe_text(part, 200, lines=False) for part in (entry.name, entry.trains, entry.checks, why))
    name, trains, checks, why = text
    return ListedSwarm(name, trains, entry.nodes, entry.rounds_per_hour, checks, entry.who == "anyone", join, why)
