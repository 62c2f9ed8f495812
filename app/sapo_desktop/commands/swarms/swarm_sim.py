"""`sapo-desktop swarm-sim`: simulated nodes without a model load a coordinator."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.services.swarms import invite_text, membership
from sapo_swarm.protocol.invite import is_loopback


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument(
        "--join",
        required=True,
        metavar="INVITE",
        help="a coordinator on this machine (hosted with --invite-uses 0); -: typed or piped in",
    )
    parser.add_argument("--nodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long (default: 10)")
    parser.add_argument("--every", type=float, default=0.0, help="seconds a round (default: as the coordinator asks)")
    parser.add_argument("--groups", type=int, default=4, help="groups that each shares and asks for (default: 4)")


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    from sapo_lab.simulated_nodes import simulate

    invite = membership.parse(invite_text.read(args.join))
    if not is_loopback(invite.host):
        raise UsageError("Simulated answers are worth nothing to others: point swarm-sim at this machine (127.0.0.1).")
    if args.nodes < 1 or args.seconds <= 0 or not 1 <= args.groups <= 9:
        raise UsageError("nodes is at least 1, seconds more than 0, groups 1 to 9.")
    try:
        report = asyncio.run(simulate(invite, args.nodes, args.seconds, args.every, args.groups, args.groups))
    except (RuntimeError, OSError) as error:
        raise AppError(f"The simulated nodes cannot take part: {error}") from error
    print(report.summary())
    return 0
