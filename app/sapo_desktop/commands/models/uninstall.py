"""`sapo-desktop uninstall --data`: list and remove what the app created on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys

from sapo_backends.errors import size_text
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import login
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.personal_data import uninstall
from sapo_desktop.services.swarms import hosting
from sapo_desktop.streams import confirm_action
from sapo_swarm.protocol import identity

PROGRAM = (
    "To remove the program itself, use what installed it: uv tool or pipx uninstall sapo-desktop; a checkout is a folder to "
    "delete."
)


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument(
        "--data", action="store_true", help="remove models, settings, logs and caches; without it they are only listed"
    )
    parser.add_argument("--yes", action="store_true", help="without asking")


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    home = Home.find()
    created = uninstall.find_created_paths(home)
    for entry in created:
        print(f"{size_text(entry.size):>8}  {entry.path}\n{'':>10}{entry.what}")
    held, doubt = uninstall.keyring_entries(home)
    for name, description in held.items():
        print(f"{'':>10}{description}, in the system's keyring: {identity.SERVICE}, {name}")
    if doubt:
        print(doubt, file=sys.stderr)
    _tell_of_bases(home)
    if not created and not held and not login.starts_at_login(home):
        print("There is nothing of sapo-desktop on this machine but the program.")
        return 0
    if not args.data:
        raise UsageError(f"To remove this: sapo-desktop uninstall --data. {PROGRAM}")
    _require_rest(home)
    if not confirm_action(args.yes, f"Remove all of it, {size_text(sum(entry.size for entry in created))}, for ever?"):
        return 1
    uninstall.remove_keyring_entries(held)
    freed = uninstall.remove_paths(home, created)
    print(
        f"Removed: {size_text(freed)} are free again{f', and {len(held)} secrets are out of the keyring' if held else ''}."
    )
    print(PROGRAM)
    return 0


def _tell_of_bases(home: Home) -> None:
    bases = uninstall.downloaded_bases(home)
    if bases:
        print("These base models were downloaded for the app. They stay, for other programs read that cache, too:")
    for base, folder in bases:
        print(f"{size_text(base.bytes):>8}  {base.repository}, to remove it delete {folder}")


def _require_rest(home: Home) -> None:
    """Raises AppError if something still uses the data to be removed, or would create it again."""
    if login.starts_at_login(home):
        raise AppError("A node starts here at login. End that first: sapo-desktop service uninstall")
    if asyncio.run(supervisor.query_status(home)) is not None:
        raise AppError("A node is running here. Stop it first: sapo-desktop stop")
    if hosting.find_coordinator(home) is not None:
        raise AppError("A swarm is hosted here. Stop it first: sapo-desktop swarm stop")
