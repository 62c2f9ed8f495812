"""`sapo-desktop leave`: this node leaves its swarm and forgets the invite."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop import membership, settings, supervisor
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("--keep-invite", action="store_true", help="leave now, but keep the invite for another time")


def main(args: argparse.Namespace) -> int:
    home = Home.find()
    if not home.invite.exists():
        raise UsageError("This node is in no swarm.")
    print(asyncio.run(leave(home, args.keep_invite)))
    return 0


async def leave(home: Home, keep_invite: bool = False) -> str:
    """Take the node's groups out of the pool, train alone from the next round on. Raises AppError."""
    from sapo_swarm.client import CoordinatorError, NodeClient

    invite = membership.load(home.invite)
    settings.change(home.settings, "swarm.join", "false")
    status = await supervisor.running(home)
    if status is not None and status.mode == "swarm":
        await supervisor.restart(home)
    told = "The coordinator knows."
    try:
        async with NodeClient(invite, (await asyncio.to_thread(membership.identity, home)).identity) as client:
            await client.leave()
    except CoordinatorError as error:
        told = f"The coordinator could not be told ({error}); its copies of your groups expire by themselves."
    if not keep_invite:
        membership.forget(home.invite)
    return f"Left the swarm. {told} {'The invite is kept.' if keep_invite else 'The invite is forgotten.'}"
