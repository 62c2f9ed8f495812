"""`sapo-desktop leave`, `stay`: this node leaves its swarm and forgets the invite, or stays after a trial."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.membership import leave_swarm, stay_in_swarm


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's flags."""
    if verb == "stay":
        return
    parser.add_argument("--keep-invite", action="store_true", help="leave now, but keep the invite for another time")


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    home = Home.find()
    if not home.invite.exists():
        raise UsageError("This node is in no swarm.")
    print(asyncio.run(stay_in_swarm(home) if args.verb == "stay" else leave_swarm(home, args.keep_invite)))
    return 0
