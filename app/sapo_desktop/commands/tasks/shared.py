"""`tasks share`, `unshare`, `offered`, `accept`: training on a private task with the members of one swarm."""

from __future__ import annotations

import argparse
import asyncio
import sys

from sapo_desktop.commands.parsing import read_invite
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf.store import train_on
from sapo_desktop.services.swarms import membership, sharing
from sapo_desktop.services.swarms.membership import offer_status
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import TaskOffer

_STANDING = {
    "accepted": "you accepted it",
    "shared": "you share it",
    "edited": "it was edited or removed here",
    "changed": "it changed since you accepted it",
    "new": "not accepted yet",
}


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError, BadTask, CoordinatorError."""
    home = Home.find()
    home.prepare()
    if args.task == "share":
        print(asyncio.run(sharing.share_task(home, args.target, args.share_heldout)))
        print("Let others in: sapo-desktop invite")
        print(f"Take part yourself: sapo-desktop node --join INVITE --tasks {args.target}")
        return 0
    if args.task == "unshare":
        print(asyncio.run(sharing.unshare_task(home, args.target)))
        return 0
    invite, join = _invite(home, args.join), " --join INVITE" if args.join not in ("", "saved") else ""
    if args.task == "offered":
        return asyncio.run(_offered(home, args.target, invite, join))
    return asyncio.run(_accept(home, args.target, args.version, invite, join))


def _invite(home: Home, given: str) -> Invite:
    """The typed invite, which is not saved, or the saved one. Raises UsageError."""
    if given not in ("", "saved"):
        return membership.parse_typed_invite(read_invite(given))
    if not home.invite.exists():
        raise UsageError("No invite is saved. Name one: sapo-desktop tasks offered --join INVITE")
    return membership.load_invite(home.invite)


async def _offered(home: Home, name: str, invite: Invite, join: str) -> int:
    """Print the swarm's offers, or with a name exactly what accepting it means. join: the flag that the next command needs."""
    async with sharing.member_client(home, invite) as client:
        offers = await sharing.list_task_offers(client, home)
        if name:
            offer = _named(offers, name)
            print("\n".join(sharing.preview_offer(offer, await client.task(offer))))
            print(f"\nAccept it: sapo-desktop tasks accept {name}{join} --yes {offer.hash}")
            return 0
        for offer in offers:
            standing = _STANDING[offer_status(offer, client.invite.swarm)]
            print(
                safe_text(f"{offer.name:<28} {standing}: {offer.train:,} rows. {offer.description}", 200, lines=False)
            )
    print(
        f"Look at one: sapo-desktop tasks offered NAME{join}"
        if offers
        else "This swarm has no tasks of its host's own."
    )
    return 0


async def _accept(home: Home, name: str, version: str, invite: Invite, join: str) -> int:
    """Show the task, ask, store it. version: a yes to this version, given in advance."""
    async with sharing.member_client(home, invite) as client:
        offer = _named(await sharing.list_task_offers(client, home), name)
        if version and version != offer.hash:
            raise UsageError(
                f"The swarm's {name} has version {offer.hash}, not the one after --yes. Look at it again: "
                f"sapo-desktop tasks offered {name}{join}"
            )
        task = await client.task(offer)
        if not version:
            print("\n".join(sharing.preview_offer(offer, task)))
            print(
                "\nIf you accept, your model can train on it, and the members of this swarm see your model's attempts at it. "
                "It holds no code."
            )
            if not await asyncio.to_thread(_asked):
                print("Not accepted; nothing was stored.")
                return 1
        print(sharing.accept_task(home, client.invite.swarm, offer, task))
    print(f"Train on it: {train_on(name)}{join or ' --join saved'}")
    return 0


def _named(found: tuple[TaskOffer, ...], name: str) -> TaskOffer:
    offer = next((offer for offer in found if offer.name == name), None)
    if offer is None:
        names = ", ".join(offer.name for offer in found) or "none"
        raise UsageError(f"This swarm offers no task {name!r}. It offers: {names}.")
    return offer


def _asked() -> bool:
    """Ask; True if the person typed yes. The end of the input is a no."""
    print("Accept it? Type yes: ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"
