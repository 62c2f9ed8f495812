"""`sapo-desktop node`: a node without a screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from sapo_desktop import __version__, settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines, load_request, memory_plan
from sapo_desktop.services.models import runs
from sapo_desktop.services.nodes.lock import NodeLock
from sapo_desktop.services.nodes.logs import node_logging
from sapo_desktop.services.nodes.report import Reporter
from sapo_desktop.services.swarms import membership
from sapo_desktop.settings import flags
from sapo_desktop.settings.live_limits import LiveLimits
from sapo_swarm.events import EPHEMERAL
from sapo_swarm.protocol.invite import Invite

if TYPE_CHECKING:
    from sapo_swarm.node.setup import NodeSetup


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The flags of the verb."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--silo", action="store_true", help="train alone (the default until you join a swarm)")
    mode.add_argument("--join", default="", metavar="INVITE", help="contribute to the swarm of this invite")
    parser.add_argument("--json", action="store_true", help="print every stored event as one JSON line")
    parser.add_argument(
        "--new", action="store_true", help="start a new run even if an unfinished one has these settings"
    )
    parser.add_argument(
        "--run", default="", metavar="ID", help="resume or name the run (default: the latest that fits)"
    )
    parser.add_argument("--quiet", action="store_true", help="print the summary only")
    flags.add_run_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Run a node here until its rounds are done or it is stopped; the exit code. Raises UsageError, AppError."""
    home = Home.find()
    home.prepare()
    chosen = settings.load(home.settings)
    config = flags.run_config(chosen, args)
    invite = _invite(args, home, chosen)
    if invite is not None:
        config = membership.mixed(config, set(vars(args)), load_request.parameters(config))
    elif config.method == "none":
        raise UsageError("A node of method none only generates for a swarm: add --join INVITE, or choose full or lora.")
    elif config.external_groups:
        raise UsageError("external_groups needs a swarm: add --join INVITE, or set it to 0.")
    engines.choose_trainer(config)  # a missing engine and too little memory are errors before there is a run
    memory_plan.require(config)
    with NodeLock(home.lock):
        run_id, folder = runs.open_run(home.runs, config, args.new, args.run)
        build = engines.builder(engines.settle(config, folder, home))
        with contextlib.suppress(OSError):
            os.nice(chosen.limits.nice)
        node_logging(home.node_log)
        from sapo_swarm.node.setup import NodeSetup

        setup = NodeSetup(config, run_id, folder, build, LiveLimits(home.settings, chosen.limits), version=__version__)
        reporter = Reporter(sys.stdout, args.json, args.quiet)
        return asyncio.run(_work(home, setup, reporter, invite, chosen))


def _invite(args: argparse.Namespace, home: Home, chosen: settings.Settings) -> Invite | None:
    """The swarm to contribute to: the one just typed, or the saved one when the settings say so. Raises UsageError."""
    if args.join:
        return membership.save(args.join, home.invite)
    return membership.load(home.invite) if chosen.swarm.join and not args.silo else None


async def _work(
    home: Home, setup: NodeSetup, reporter: Reporter, invite: Invite | None, chosen: settings.Settings
) -> int:
    if invite is not None:
        who = await asyncio.to_thread(membership.identity, home)
        setup.exchange, sentence = await membership.enter(invite, who, chosen, setup.config)
        setup.node_key, setup.swarm = who.identity.node, invite.swarm
        reporter.say(sentence)
    return await _serve(home, setup, reporter)


async def _serve(home: Home, setup: NodeSetup, reporter: Reporter) -> int:
    from sapo_swarm.node.control.server import ControlServer
    from sapo_swarm.node.loop import Node

    node = Node(setup)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: KeyboardInterrupt instead
            loop.add_signal_handler(number, node.command, "stop")
    async with ControlServer(node, home.socket), node.bus.subscribe(node.journal.last_seq) as (_, queue):

        async def print_events() -> None:
            while (event := await queue.get()) is not None:
                if not isinstance(event, EPHEMERAL):
                    reporter.show(event)

        printer = asyncio.create_task(print_events())
        try:
            await node.run()
        finally:
            await printer
            reporter.summary(setup.folder)
    return 0
