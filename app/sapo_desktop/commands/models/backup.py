"""`sapo-desktop backup FILE` and `restore FILE`: all of a person's data in one archive, and back."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from sapo_backends.errors import size_text
from sapo_desktop.paths import Home, quote_command, typed_target
from sapo_desktop.services.personal_data import archive
from sapo_desktop.services.personal_data import archive as saving
from sapo_desktop.services.personal_data import restore as restoring
from sapo_desktop.streams import ask_yes_no
from sapo_swarm.protocol.safe_text import safe_text


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the archive, a tar file")
    if verb == "backup":
        parser.add_argument(
            "--keys", action="store_true", help="with your node's key and invite: whoever has the file can be you"
        )
        return
    parser.add_argument("--keys", action="store_true", help="bring back the node's key and invite, too")
    parser.add_argument(
        "--replace", action="store_true", help="without asking; what is replaced is kept in data/replaced"
    )
    parser.add_argument("--list", action="store_true", help="only say what is in it")


def main(args: argparse.Namespace) -> int:
    """Save, restore or list; the exit code: 1 if part of the archive was not restored. Raises AppError."""
    home = Home.find()
    if args.verb == "backup":
        return _backup(home, args)
    return _list(home, args.file) if args.list else _restore(home, args)


def _backup(home: Home, args: argparse.Namespace) -> int:
    saved = saving.create_backup(home, typed_target(args.file), args.keys)
    _print(saved.manifest)
    print(
        f"{saved.path}: {size_text(saved.size)}. To bring it back: {quote_command('sapo-desktop', 'restore', str(saved.path))}"
    )
    for sentence in saved.besides:
        print(sentence)
    return 0


def _print(manifest: archive.BackupManifest) -> None:
    """Print one line per entry."""
    sizes: dict[str, int] = defaultdict(int)
    for entry in manifest.files:
        sizes[archive.restore_unit(entry.name)] += entry.size
    for item, size in sizes.items():
        print(f"{size_text(size):>8}  {safe_text(item, 120, lines=False)}")


def _list(home: Home, path: Path) -> int:
    _print(restoring.read_manifest(home, path))
    return 0


def _restore(home: Home, args: argparse.Namespace) -> int:
    def replace(item: str) -> bool:
        if args.replace or not sys.stdin.isatty():
            return bool(args.replace)
        shown = safe_text(item, 120, lines=False)
        return ask_yes_no(f"{shown} is here with other content. Take the archive's?")

    complete = True
    for outcome in restoring.restore_backup(home, args.file, args.keys, replace):
        print(f"{safe_text(outcome.item, 120, lines=False)}: {outcome.said}")
        complete &= outcome.done or archive.is_key(outcome.item)
    return 0 if complete else 1
