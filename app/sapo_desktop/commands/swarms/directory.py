"""`sapo-desktop directory`: signed lists of swarms, to read and to publish."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from pathlib import Path

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import directories, membership
from sapo_desktop.services.swarms.interface import SwarmDirectory
from sapo_swarm.node.clock import format_age
from sapo_swarm.protocol.directory import (
    LONGEST_S,
    MAX_BYTES,
    BadDirectory,
    DirectoryEntry,
    SwarmList,
    as_text,
    fetch_directory,
    parse_address,
    parse_swarm_list,
    sealed_in,
    sign_directory,
    verify_directory,
)
from sapo_swarm.protocol.identity import node_id
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.whole_file import write_atomically

EXAMPLE = SwarmList(
    name="Swarms that I know",
    swarms=(
        DirectoryEntry(
            name="example",
            trains="what it trains on, in a few words",
            nodes=0,
            rounds_per_hour=0.0,
            who="invited",
            checks="how groups are checked, in a few words",
            join="",
            ask="whom to ask for an invite; with who = anyone: the sapo:// line goes into join",
        ),
    ),
)


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument(
        "action", nargs="?", choices=("show", "add", "new", "sign"), default="show", help="default: show"
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="ADDRESS|FILE",
        help="show: an address or a file (default: those in the settings); add: an address with #key=…; new, sign: a file",
    )
    parser.add_argument("--days", type=float, default=30.0, help="sign: how long the list is valid (default: 30)")
    parser.add_argument("--fresh", action="store_true", help="show: ask the hosts, however lately that was done")


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    home = Home.find()
    home.prepare()
    if args.action != "show" and not args.what:
        raise UsageError(
            f"Which one? sapo-desktop directory {args.action} {'ADDRESS' if args.action == 'add' else 'FILE'}"
        )
    if args.action == "new":
        return _new(Path(args.what))
    if args.action == "sign":
        return _sign(home, Path(args.what), args.days)
    if args.action == "add":
        directories.follow_directory(home, args.what)
        print("Added. Look in it: sapo-desktop directory, or f on the swarm screen")
        return 0
    return asyncio.run(_show_one(args.what) if args.what else _show_all(home, args.fresh))


def _new(path: Path) -> int:
    try:
        with path.open("xb") as file:
            file.write(as_text(EXAMPLE) + b"\n")
    except FileExistsError as error:
        raise UsageError(f"{path} exists already: choose another name.") from error
    print(f"Describe your swarms in {path}, then sign it: sapo-desktop directory sign {path}")
    return 0


def _sign(home: Home, path: Path, days: float) -> int:
    """Sign in place; a file signed before, and perhaps edited since, is signed again. Raises UsageError."""
    if not 0 < days * 86_400 <= LONGEST_S:
        raise UsageError(f"--days is a number from 1 to {LONGEST_S / 86_400:.0f}.")
    data = _bytes_of(path)
    now, who = int(time.time()), membership.load_identity(home)
    try:
        with contextlib.suppress(BadDirectory):  # not signed yet, or no list at all: `written` says so
            data = bytes(sealed_in(data).list)
        listing = msgspec.structs.replace(parse_swarm_list(data), issued=now, expires=now + int(days * 86_400))
        signed = sign_directory(listing, who.identity)
    except BadDirectory as error:
        raise UsageError(f"{path}: {error}") from error
    write_atomically(path, signed)
    count = f"{len(listing.swarms)} swarm{'' if len(listing.swarms) == 1 else 's'}"
    print(f"Signed {count} for {days:g} days, {len(signed):,} bytes. {who.sentence}")
    print(
        f"Put the file where people can fetch it, and tell them its address with this behind it: #key={who.identity.node}"
    )
    return 0


def _bytes_of(path: Path) -> bytes:
    """The file's content. Raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"Cannot read {path} ({error.strerror}).") from error


async def _show_one(what: str) -> int:
    """Show a directory by address or file, which need not be in the settings. Raises UsageError."""
    try:
        if "://" in what:
            address = parse_address(what, need_key=False)
            place, data, key = directories.display_address(address), await fetch_directory(address), address.key
        else:
            address, place, key = None, safe_text(what, 200, lines=False), ""
            data = await asyncio.to_thread(_bytes_of, Path(what))
        listing = verify_directory(data, key, time.time())
        signer = node_id(bytes.fromhex(sealed_in(data).key))
    except BadDirectory as error:
        raise UsageError(f"{safe_text(what, 200, lines=False)}: {error}") from error
    here = address is None or directories.is_here(address)
    swarms = tuple(directories.listed_swarm(entry, here) for entry in listing.swarms)
    print("\n".join(_lines(SwarmDirectory(place, safe_text(listing.name, 60, lines=False), swarms, time.time()))))
    if not key:
        print(f"Signed with the key {signer}. Whose that is, the file cannot say: compare it with what you were told.")
    return 0


async def _show_all(home: Home, fresh: bool) -> int:
    followed = await directories.read_directories(home, fresh)
    if not followed:
        print("No directory is in your settings, and none is built in. Add one that somebody told you of:")
        print("  sapo-desktop directory add 'https://host/file.json#key=…'")
    for directory in followed:
        print("\n".join(_lines(directory)))
    return 0 if not followed or any(listing.read for listing in followed) else 1


def _lines(directory: SwarmDirectory) -> list[str]:
    """What a directory lists, as plain text."""
    title = f"{directory.name or 'Directory'} ({directory.place})"
    if not directory.read:
        return [f"{title}: {directory.note}"]
    seconds = time.time() - directory.read
    lines = [title + (f", read {format_age(seconds)} ago" if seconds >= 60 else "")]
    lines += [f"  {directory.note}"] if directory.note else []
    for swarm in directory.swarms:
        nodes = f"{swarm.nodes:,} node{'' if swarm.nodes == 1 else 's'}"
        lines.append(f"  {swarm.name}: {nodes}, {swarm.rounds_per_hour:,.0f} rounds/h. Trains on {swarm.trains}.")
        lines.append(f"    Checked: {swarm.checks}.")
        how = f"sapo-desktop node --join '{swarm.join}'" if swarm.join else swarm.why
        lines.append(f"    {'Anyone may join' if swarm.anyone else 'By invite'}: {how}")
    return lines or [title]
