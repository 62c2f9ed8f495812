"""`sapo-desktop node`: a node without a screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from sapo_desktop import __version__, settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines, load_request, memory_plan
from sapo_desktop.services.models import training
from sapo_desktop.services.models.shelf.adopt import adopt
from sapo_desktop.services.nodes.lock import NodeLock
from sapo_desktop.services.nodes.logs import node_logging
from sapo_desktop.services.nodes.report import Reporter
from sapo_desktop.services.swarms import membership
from sapo_desktop.settings import flags
from sapo_desktop.settings.live_limits import LiveLimits
from sapo_swarm.config import RunConfig
from sapo_swarm.events import EPHEMERAL, RunStarted
from sapo_swarm.protocol.invite import Invite

if TYPE_CHECKING:
    from sapo_swarm.node.setup import NodeSetup


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The flags of the verb."""
    parser.add_argument("name", nargs="?", default="", help="the model to train on (default: the one used last)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--silo", action="store_true", help="train alone (the default until you join a swarm)")
    mode.add_argument(
        "--join", default="", metavar="INVITE", help="contribute to the swarm of this invite; saved: of the last one"
    )
    parser.add_argument("--json", action="store_true", help="print every stored event as one JSON line")
    parser.add_argument("--quiet", action="store_true", help="print the summary only")
    flags.add_run_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Run a node here until its rounds are done or it is stopped; the exit code. Raises UsageError, AppError."""
    home = Home.find()
    home.prepare()
    reporter = Reporter(sys.stdout, args.json, args.quiet)
    for sentence in adopt(home):
        reporter.say(sentence)
    chosen = settings.load(home.settings)
    model = training.chosen(home, args.name)
    base = msgspec.structs.replace(chosen, run=model.config) if model else chosen
    typed = set(vars(args)) & set(RunConfig.__struct_fields__)
    session = training.plan(model, flags.run_config(base, args), typed)
    invite = _invite(args, home, chosen)
    config = _with_swarm(session, invite, typed)
    engines.choose_trainer(config)  # a missing engine and too little memory are errors before there is a model
    memory_plan.require(config)
    with NodeLock(home.lock):
        session = training.begin(home, session, invite)
        setup = _setup(home, session, config, chosen)
        with contextlib.suppress(OSError):
            os.nice(chosen.limits.nice)
        node_logging(home.node_log)
        return asyncio.run(_work(home, setup, session, reporter, invite, chosen))


def _with_swarm(session: training.Session, invite: Invite | None, typed: set[str]) -> RunConfig:
    """The session's settings as they count where the node trains. Raises UsageError."""
    config = msgspec.structs.replace(session.config, rounds=session.goal)
    if invite is not None:
        membership.require_shared(config)
        return membership.mixed(config, typed, load_request.parameters(config))
    if config.method == "none":
        raise UsageError("A node of method none only generates for a swarm: add --join INVITE, or choose full or lora.")
    if "external_groups" in typed and config.external_groups:
        raise UsageError("external_groups needs a swarm: add --join INVITE, or set it to 0.")
    return membership.alone(config)


def _setup(home: Home, session: training.Session, config: RunConfig, chosen: settings.Settings) -> NodeSetup:
    from sapo_swarm.node.setup import NodeSetup

    assert session.model is not None
    record, folder = session.model.record, session.model.folder
    return NodeSetup(
        config,
        record.id,
        folder,
        engines.run_builder(config, folder, home),
        LiveLimits(home.settings, chosen.limits),
        version=__version__,
        name=record.name,
        base=record.base,
        changed=session.changed,
    )


def _invite(args: argparse.Namespace, home: Home, chosen: settings.Settings) -> Invite | None:
    """The swarm to contribute to: the one just typed, or the saved one when the settings say so. Raises UsageError."""
    if args.join == "saved":
        return membership.load(home.invite)
    if args.join:
        return membership.save(args.join, home.invite)
    return membership.load(home.invite) if chosen.swarm.join and not args.silo else None


async def _work(
    home: Home,
    setup: NodeSetup,
    session: training.Session,
    reporter: Reporter,
    invite: Invite | None,
    chosen: settings.Settings,
) -> int:
    if invite is not None:
        who = await asyncio.to_thread(membership.identity, home)
        setup.exchange, sentence = await membership.enter(invite, who, chosen, setup.config)
        setup.node_key, setup.swarm = who.identity.node, invite.swarm
        reporter.say(sentence)
    return await _serve(home, setup, session, reporter)


async def _serve(home: Home, setup: NodeSetup, session: training.Session, reporter: Reporter) -> int:
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
                if isinstance(event, RunStarted):
                    with contextlib.suppress(AppError):  # a full disk: the node says so itself when it saves
                        await asyncio.to_thread(training.opened, session)
                if not isinstance(event, EPHEMERAL):
                    reporter.show(event)

        printer = asyncio.create_task(print_events())
        try:
            await node.run()
        finally:
            await printer
            reporter.summary(setup.folder)
    return 0
