"""`sapo-desktop invite`, `ban`: who may join the swarm hosted here, and who is banned."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting
from sapo_swarm.coordinator.admin_client import InviteView
from sapo_swarm.coordinator.records import INVITE_EXPIRED, INVITE_REVOKED
from sapo_swarm.loopback import is_loopback
from sapo_swarm.node.clock import format_duration
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text

_REASON = "banned by the host"


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's flags."""
    if verb == "ban":
        parser.add_argument("node", help="node id, or a unique beginning of it (see: sapo-desktop swarm)")
        parser.add_argument("--reason", default="", help=f"what the node is told (default: {_REASON})")
        parser.add_argument("--all", action="store_true", help="also revoke its invite, and ban everybody it let in")
        parser.add_argument("--lift", action="store_true", help="let the node in again")
        return
    parser.add_argument("action", nargs="?", choices=("new", "list", "revoke"), default="new", help="default: new")
    parser.add_argument("which", nargs="?", default="", help="revoke: the invite's label or the beginning of its id")
    parser.add_argument("--label", default="", help="what you call it: who is it for?")
    parser.add_argument("--uses", type=int, default=10, help="nodes that it admits (default: 10; 0: any number)")
    parser.add_argument("--hours", type=float, default=168.0, help="its life (default: 168, a week; 0: for ever)")


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    return asyncio.run(_ban(args) if args.verb == "ban" else _invite(args))


async def _invite(args: argparse.Namespace) -> int:
    async with hosting.require_coordinator(Home.find()).client() as admin:
        if args.action == "list":
            print("\n".join(_row(view) for view in await admin.invites()) or "There is no invite yet.")
        elif args.action == "revoke":
            view = select_invite(await admin.invites(), args.which)
            out = await admin.revoke(view.hash)
            print(f"Revoked {_name(view)}. Nodes that are out with it: {', '.join(out) or 'none'}.")
        else:
            _show(await admin.new_invite(args.label, args.hours, args.uses))
    return 0


def _show(invites: Sequence[Invite]) -> None:
    """Print the invite lines to send, those that others can reach first."""
    for invite in sorted(invites, key=lambda invite: is_loopback(invite.host)):
        print(f"{invite}{'   (this machine only)' if is_loopback(invite.host) else ''}")


def select_invite(views: Sequence[InviteView], which: str) -> InviteView:
    """The invite with this label or id prefix. Raises UsageError."""
    matches = [v for v in views if which and (v.label == which or v.hash.startswith(which))]
    if len(matches) != 1:
        labels = ", ".join(_name(v) for v in views if not v.revoked) or "none"
        raise UsageError(f"{'Several invites are' if matches else 'No invite is'} called {which!r}. Known: {labels}.")
    return matches[0]


def _name(view: InviteView) -> str:
    label = safe_text(view.label, 40, lines=False)
    return f"{view.hash[:8]}{f' ({label})' if label else ''}"


def _row(view: InviteView) -> str:
    life = f"for another {format_duration(max(0.0, view.expires - time.time()))}" if view.expires else "for ever"
    if view.verdict in (INVITE_EXPIRED, INVITE_REVOKED):
        life = view.verdict
    uses = f"{view.uses} of {view.max_uses}" if view.max_uses else f"{view.uses}"
    return f"{view.hash[:8]}  {life:<22}  used {uses:<8}  {safe_text(view.label, 80, lines=False)}"


async def _ban(args: argparse.Namespace) -> int:
    state = hosting.require_coordinator(Home.find())
    node = await _member(state, args.node)
    async with state.client() as admin:
        out = await admin.ban(node, "" if args.lift else args.reason.strip() or _REASON, args.all)
    if args.lift:
        print(f"{node} may take part again.")
    else:
        print(f"Out, with their groups: {', '.join(out)}.")
        if not args.all:
            print("Whoever has an invite with uses left can come back under another key: --all revokes it too.")
    return 0


async def _member(state: hosting.HostedCoordinator, beginning: str) -> str:
    """The full id of the leaderboard's node with this prefix. Raises UsageError."""
    if len(beginning) == 26:
        return beginning
    async with state.visitor() as client:
        nodes = [row.node for row in (await client.leaderboard()).nodes]
    matches = [node for node in nodes if beginning and node.startswith(beginning)]
    if len(matches) != 1:
        raise UsageError(
            f"{'Several nodes begin' if matches else 'No active node begins'} with {beginning!r}. Type the whole id."
        )
    return matches[0]
