"""`sapo-desktop node`: a node without a screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import signal
import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from sapo_backends.common import hardware
from sapo_desktop import __version__, settings
from sapo_desktop.commands.parsing import VerbParser
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import card, fetching
from sapo_desktop.services.machine import engines, load_request, memory_plan, speed
from sapo_desktop.services.models import training
from sapo_desktop.services.models.shelf.adopt import migrate_runs
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes.logs import node_logging
from sapo_desktop.services.nodes.report import ConsoleReporter
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.swarms import invite_text, membership, trial
from sapo_desktop.services.tasks import judging
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RoundFinished, RunStarted, Vitals
from sapo_swarm.node.governor import ticker
from sapo_swarm.node.governor.ticker import step_back
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.tasks.catalogue import NoSuchTask

if TYPE_CHECKING:
    from sapo_swarm.node.setup import NodeSetup


EVERYDAY = (
    *("silo", "join", "json", "quiet"),
    *("tasks", "preset", "examples", "rounds", "eval-every", "seed", "threads", "max-new-tokens", "learning-rate"),
)
"""Flags that --help explains; --help-all explains all of them."""


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The flags of the verb."""
    parser.add_argument("name", nargs="?", default="", help="the model to train on (default: the one used last)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--silo", action="store_true", help="train alone (the default unless swarm.join is set)")
    mode.add_argument(
        "--join",
        default="",
        metavar="INVITE",
        help="contribute to the swarm of this invite; -: typed or piped in; saved: of the last one",
    )
    parser.add_argument("--json", action="store_true", help="print every stored event as one JSON line")
    parser.add_argument(
        "--as-left", action="store_true", help="stay paused if you paused it before; the start at login uses this"
    )
    parser.add_argument(
        "--as-finished",
        action="store_true",
        help="stay paused if it had finished before; the dashboard's start uses this",
    )
    parser.add_argument("--quiet", action="store_true", help="print the summary only")
    flags.add_run_flags(parser)
    if isinstance(parser, VerbParser):
        parser.shorten_help(*EVERYDAY)


def main(args: argparse.Namespace) -> int:
    """Run a node here until its rounds are done or it is stopped; the exit code. Raises UsageError, AppError."""
    hardware.one_arena()
    home = Home.find()
    home.prepare()
    reporter = ConsoleReporter(sys.stdout, args.json, args.quiet)
    for sentence in migrate_runs(home):
        reporter.say(sentence)
    chosen = settings.load_settings(home.settings)
    model = training.model_to_train(home, args.name)
    session = _plan(model, chosen.run, args)
    invite = _invite(args, home, chosen)
    config = _run_config(session, invite, invite is not None and membership.for_trial(invite, home.invite))
    if model is not None and model.trained:
        judging.same_kind(model.config.tasks, config.tasks)
    judge = judging.judge_for(home, config)
    if judge is not None:
        reporter.say(judging.privacy_note(judge.endpoint))
    engines.choose_trainer(config)  # report a missing engine or too little memory before creating a model
    room = memory_plan.node_memory_bytes(chosen.limits)
    _tell_what_it_needs(home, config, reporter, room, trained=model is not None and model.trained)
    with NodeLock(home.lock), contextlib.ExitStack() as until_the_end:
        typed_invite = invite if args.join not in ("", "saved") else None
        if typed_invite is not None:
            asyncio.run(membership.request_admission(home, typed_invite, chosen.person.name, config.model))
        session = training.begin_session(home, session, invite)
        if typed_invite is not None:
            membership.save_invite(str(typed_invite), home.invite)
        on_trial = trial.find_trial(home.invite, invite.swarm) if invite else None
        setup = _setup(home, session, config, chosen)
        rounds = session.model.rounds_done if session.model else 0
        deaths = until_the_end.enter_context(ticker.track_oom_deaths(setup.folder, rounds))
        if chosen.limits.max_memory and not ticker.limit_process_memory(chosen.limits.max_memory):
            reporter.say("limits.max_memory bounds what is planned here, but this system has no wall for the rest.")
        setup = replace(
            setup,
            deaths=deaths,
            as_left="paused" if args.as_left else "finished" if args.as_finished else "",
            judge=judge,
            trial=on_trial.name if on_trial else "",
        )
        step_back(chosen.limits.nice)
        node_logging(home.node_log)
        return asyncio.run(_work(home, setup, session, reporter, invite, chosen))


def _plan(model: Model | None, new: RunConfig, args: argparse.Namespace) -> training.TrainingSession:
    """The session of the model, or of a first one with the settings of new models. Raises UsageError, ModelNotFound, BadTask,
    UnknownTask that says where tasks of a swarm are, or that one of the model's own is gone."""
    try:
        return training.plan_session(model, new, flags.typed_settings(args), fetching.fetch_base_metadata)
    except NoSuchTask as error:
        if not args.join:
            if model is not None and "tasks" not in args:
                raise NoSuchTask(
                    f"{error} This model trains on {', '.join(model.config.tasks)}: make the missing task again "
                    "(sapo-desktop tasks new FILE --name NAME), or give the model others (--tasks A,B)."
                ) from error
            raise
        where = "" if args.join == "saved" else " --join INVITE"
        raise NoSuchTask(
            f"{error} A task of the swarm's host is accepted first: sapo-desktop tasks offered{where}"
        ) from error


def _tell_what_it_needs(home: Home, config: RunConfig, reporter: ConsoleReporter, room: int, trained: bool) -> None:
    """Print the base's card before its first round; a bundled one's time is known after a round. Raises OutOfMemory,
    ModelNotFound, DownloadFailed."""
    if trained or not fetching.reads_folder(config):
        memory_plan.require_round_memory(config, room)
        return
    from sapo_backends.checkpoints import locate

    base_card = card.build_base_card(home, config, measure=config.model not in locate.BUNDLED)
    for line in card.base_card_lines(base_card):
        reporter.say(line)
    if base_card.over_budget:
        raise UsageError(f"{config.model} is too large: {base_card.over_budget}")
    memory_plan.require_round_memory(config, room, size=base_card.size, fallback=bool(base_card.slow))


def _run_config(session: training.TrainingSession, invite: Invite | None, on_trial: bool) -> RunConfig:
    """The session's settings as they apply alone or in this swarm. Raises UsageError, BadTask."""
    if invite is not None:
        membership.require_shared(session.config, invite.swarm)
        parameters = load_request.parameter_count(session.config)
        return session.resolve("trial" if on_trial else "member", parameters)[0]
    asked, origins = session.resolve("undecided")
    if asked.method == "none":
        raise UsageError("A node of method none only generates for a swarm: add --join INVITE, or choose full or lora.")
    if asked.external_groups and origins["external_groups"] == "flag":
        raise UsageError("external_groups needs a swarm: add --join INVITE, or set it to 0.")
    return session.resolve("alone")[0]


def _setup(home: Home, session: training.TrainingSession, config: RunConfig, chosen: settings.Settings) -> NodeSetup:
    from sapo_swarm.node.setup import NodeSetup

    assert session.model is not None
    record, folder = session.model.record, session.model.folder
    return NodeSetup(
        config,
        record.id,
        folder,
        engines.run_builder(config, folder, home),
        settings.LiveLimits(home.settings, chosen.limits),
        version=__version__,
        name=record.name,
        base=record.base,
        changed=session.changed,
        fetch=functools.partial(fetching.download_base, config),
        written=home.written_answers,
        trials=load_request.stored_trials(home, config),
    )


def _invite(args: argparse.Namespace, home: Home, chosen: settings.Settings) -> Invite | None:
    """The invite to the swarm to contribute to: the typed one, or the saved one if the settings say so. Raises UsageError."""
    if args.join == "saved":
        return membership.load_invite(home.invite)
    if args.join:
        return membership.parse_typed_invite(invite_text.read_invite(args.join))
    return membership.load_invite(home.invite) if chosen.swarm.join and not args.silo else None


async def _work(
    home: Home,
    setup: NodeSetup,
    session: training.TrainingSession,
    reporter: ConsoleReporter,
    invite: Invite | None,
    chosen: settings.Settings,
) -> int:
    if invite is not None:
        who = await asyncio.to_thread(membership.load_identity, home)
        exchange, sentences = await membership.join_swarm(
            invite, who, chosen, setup.config, setup.folder, bool(setup.trial), home.invite
        )
        running_trial = await asyncio.to_thread(trial.find_trial, home.invite, invite.swarm)
        if running_trial and not setup.trial:  # the host has made the swarm open
            config = await asyncio.to_thread(_run_config, session, invite, True)
            setup = replace(setup, trial=running_trial.name, config=config)
        setup = replace(
            setup,
            exchange=exchange,
            node_key=who.identity.node,
            swarm=invite.swarm,
            notes=tuple(sentences[1:]),
        )
        reporter.say(sentences[0])
        if setup.trial:
            reporter.say(trial.RULES)
    return await _serve(home, setup, session, reporter)


async def _serve(home: Home, setup: NodeSetup, session: training.TrainingSession, reporter: ConsoleReporter) -> int:
    from sapo_swarm.node.control_server import ControlServer
    from sapo_swarm.node.loop import Node

    node = Node(setup)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: KeyboardInterrupt instead
            loop.add_signal_handler(number, node.command, "stop")
    trial_end = (
        trial.TrialEndPrompt(await asyncio.to_thread(trial.progress_from_journal, node.journal, setup.trial))
        if setup.trial
        else None
    )
    durations: deque[float] = deque(maxlen=speed.MAX_ROUNDS)
    async with (
        ControlServer(node, home.socket),
        node.bus.subscribe(node.journal.last_seq) as (_, queue),
    ):

        async def print_events() -> None:
            while (event := await queue.get()) is not None:
                if isinstance(event, RunStarted):
                    with contextlib.suppress(AppError):  # a full disk: the node reports it when it saves
                        await asyncio.to_thread(training.record_session_start, session)
                if isinstance(event, RoundFinished) and not event.examples:
                    durations.append(sum(event.seconds.values()))
                if not isinstance(event, Vitals):
                    reporter.show(event)
                    if trial_end is not None and (sentence := trial_end.after(event)):
                        reporter.say(sentence)

        printer = asyncio.create_task(print_events())
        try:
            await node.run()
        finally:
            await printer
            reporter.summary(setup.folder)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(speed.remember_rounds, home, setup.config, durations)
    return 0
