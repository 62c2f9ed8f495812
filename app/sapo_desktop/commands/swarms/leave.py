"""`sapo-desktop leave`: this node leaves its swarm and forgets the invite."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.leaving import leave


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument("--keep-invite", action="store_true", help="leave now, but keep the invite for another time")


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    home = Home.find()
    if not home.invite.exists():
        raise UsageError("This node is in no swarm.")
    print(asyncio.run(leave(home, args.keep_invite)))
    return 0
