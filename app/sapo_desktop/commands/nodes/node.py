"""`sapo-desktop node`: a node without a screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from sapo_backends.common import hardware
from sapo_desktop import __version__, settings
from sapo_desktop.commands.parsing import VerbParser, read_invite
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.against_base import (
    describe_base_so_far,
    describe_difference,
    describe_greedy,
    describe_practice,
    format_rate,
)
from sapo_desktop.services.bases import card, fetching, question_tokens
from sapo_desktop.services.machine import engines, load_request, memory_plan, speed
from sapo_desktop.services.models import training
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.swarms import membership, trial
from sapo_desktop.services.tasks import judging
from sapo_desktop.settings import flags
from sapo_desktop.streams import json_line, to_nowhere
from sapo_swarm.config import RunConfig
from sapo_swarm.events import (
    BaseAsked,
    Evaluated,
    Event,
    ExamplesRead,
    ExternalSwitched,
    FirstSuccess,
    LogLine,
    Phase,
    RoundFinished,
    RunStarted,
    StateChanged,
    SwarmUpdated,
    TrialMeasured,
    Vitals,
)
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.governor.machine import limit_process_memory, step_back, track_oom_deaths
from sapo_swarm.node.round_warnings import CUT_OFF
from sapo_swarm.node.training_count import LINEAGE, TrainingCounts, count_of
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import SafeFormatter, safe_text
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
        "--as-left",
        action="store_true",
        help="stay paused if you paused it or it had finished; the dashboard and the start at login use this",
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
        deaths = until_the_end.enter_context(track_oom_deaths(setup.folder, rounds))
        if chosen.limits.max_memory and not limit_process_memory(chosen.limits.max_memory):
            reporter.say("limits.max_memory bounds what is planned here, but this system has no wall for the rest.")
        setup = replace(
            setup,
            deaths=deaths,
            as_left=args.as_left,
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
        memory_plan.require_round_memory(config, room, prompt=question_tokens.mean_prompt(home, config))
        return
    from sapo_backends.checkpoints import locate

    base_card = card.build_base_card(home, config, measure=config.model not in locate.BUNDLED)
    for line in card.base_card_lines(base_card):
        reporter.say(line)
    if base_card.over_budget:
        raise UsageError(f"{config.model} is too large: {base_card.over_budget}")
    prompt = question_tokens.mean_prompt(home, config)
    memory_plan.require_round_memory(config, room, base_card.size, bool(base_card.slow), prompt)


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
        return membership.parse_typed_invite(read_invite(args.join))
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
    reporter.begin(await asyncio.to_thread(node.journal.read, 0, (*LINEAGE, "evaluation")))
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


# What a node without a screen prints: one readable line per round, a summary at the end; or JSON lines.

_EDGE = 20
"""Rounds averaged at either end for the summary."""
_PATIENCE_S = 10.0
"""Seconds between two lines about the progress of a slow model loading."""
_VERBS = {
    "space goes on": "sapo-desktop resume goes on",
    "space tries again": "sapo-desktop resume tries again",
    "r runs anyway": "sapo-desktop run-anyway overrides it",
    "r ends that": "sapo-desktop run-anyway --off ends that",
}


def in_a_shell(sentence: str) -> str:
    """The node's sentences about the dashboard's keys, reworded for somebody who uses commands instead."""
    for key, verb in _VERBS.items():
        sentence = sentence.replace(key, verb)
    return sentence


class ConsoleReporter:
    """Prints stored events as lines of text on a stream."""

    def __init__(self, out: TextIO, json: bool, quiet: bool) -> None:
        self._out, self._json, self._quiet = out, json, quiet
        self._rounds = 0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_EDGE)
        self._evaluated: Evaluated | None = None
        self._tokens = 0
        self._seconds = 0.0
        self._planned = 0
        self.counts = TrainingCounts()
        """What the weights were trained with before the first event that is shown, and since."""
        self._reading: ExamplesRead | None = None
        self._taught: Evaluated | None = None
        """The newest result after examples and before practice."""
        self._local = "local"
        self._connected: bool | None = None
        self._spoke = 0.0

    def show(self, event: Event) -> None:
        """Print the event if it is worth a line, and count it for the summary. Of ephemeral events only model loading is
        shown."""
        if isinstance(event, Phase):
            self._opening(event)
            return
        self._spoke, self.counts = event.time, self.counts.after(event)
        if isinstance(event, RoundFinished):
            self._tokens += event.tokens_generated
            self._seconds += 0.0 if event.examples else sum(event.seconds.values())
            if event.reward_local is not None:
                self._rounds += 1
                if self._rounds <= _EDGE:
                    self._first.append(event.reward_local)
                self._last.append(event.reward_local)
        elif isinstance(event, Evaluated) and (event.round or not event.belated or self._evaluated is None):
            self._evaluated = event
            self._remember(event)
        elif isinstance(event, RunStarted):
            self._planned = event.rounds_planned
            self._local = "judged" if event.judged else "local"
        elif isinstance(event, ExamplesRead):
            self._reading = event
        if self._quiet:
            return
        text = json_line(event) if self._json else self._line(event)
        if text:
            self._print(text)

    def begin(self, events: Iterable[Event]) -> None:
        """What the journal says of earlier sessions, before the first event is shown."""
        for event in events:
            self.counts = self.counts.after(event)
            if isinstance(event, Evaluated):
                self._remember(event)

    def _remember(self, event: Evaluated) -> None:
        done = self.counts.at(event.round)
        if done.steps and not done.rounds:
            self._taught = event

    def _opening(self, event: Phase) -> None:
        if event.phase == "open" and event.time - self._spoke >= _PATIENCE_S:
            self._spoke = event.time
            self.say(safe_text(event.detail, 400, lines=False))

    def say(self, sentence: str) -> None:
        """Print a line that is not an event."""
        if not self._json and not self._quiet:
            self._print(f"          {safe_text(sentence, 2000, lines=False)}")

    def summary(self, folder: Path) -> None:
        """The end of a run in a few lines; as JSON, a last object of kind "summary"."""
        last, rounds = self._evaluated, self._rounds
        edge = max(1, min(_EDGE, rounds // 2))
        first, final = self._first[:edge], list(self._last)[-edge:]
        if self._json:
            data = {
                "kind": "summary",
                "folder": str(folder),
                "rounds": rounds,
                "examples_rounds": self.counts.now.steps,
                "trained": msgspec.to_builtins(self.counts.now),
                "reward_local_first": _mean(first),
                "reward_local_last": _mean(final),
                "tokens_generated": self._tokens,
                "seconds": self._seconds,
                "held_out": None if last is None else msgspec.to_builtins(last),
            }
            self._print(json_line(data))
            return
        if not rounds and not self.counts.now.steps:
            return
        lines, reading = [""], self._reading
        if reading is not None:
            lines.append(
                f"Examples: {reading.step} steps in {format_duration(reading.seconds)}. {_right(reading)}".rstrip()
            )
        if rounds:
            spent = format_duration(self._seconds)
            practice = " of practice" if self.counts.now.steps else ""
            tokens = f"{self._tokens:,} tokens generated"
            lines.append(f"{count_of(rounds, 'round')}{practice} in {spent}, {tokens}.")
        if edge > 1:
            share = f"in the first {len(first)} rounds, {_mean(final):.3f} in the last {len(final)}"
            lines.append(f"Local reward: {_mean(first):.3f} {share}.")
        if last is not None:
            lines.append(f"Held-out pass@1: {_held_out(last)}")
            if rounds and self._taught is not None and self.counts.at(last.round).rounds:
                lines.append(f"{describe_practice(self._taught, last)}.")
        lines.append(f"Saved in {folder}")
        if last is not None:  # without held-out questions here there is nothing to measure on
            lines.append(
                "Measure it on up to 400 held-out questions a task, where there are more: sapo-desktop eval --items 400"
            )
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        """Print a line. If the reader is gone (a closed terminal, `| head`), the run continues silently."""
        try:
            print(text, file=self._out, flush=True)
        except OSError:
            to_nowhere(self._out.fileno())

    def _line(self, event: Event) -> str:
        if isinstance(event, RunStarted):
            done = self.counts.now
            at = f"goes on with round {done.rounds + 1}" if done.rounds or not done.steps else f"goes on {done.when}"
            at = at if done.newest else "starts"
            how = "generating for the swarm, not training," if event.method == "none" else f"{event.method} fine-tuning"
            tasks = f"{len(event.tasks)} task{'' if len(event.tasks) == 1 else 's'}"
            precision = f"{event.precision}, {event.computed_by}" if event.computed_by else event.precision
            return (
                f"{event.name or event.run_id} {at}: {event.model}, {event.parameters / 1e6:.1f}M parameters, {how} "
                f"on {event.device} ({precision}), {event.algorithm}, "
                f"{event.local_groups}/{event.external_groups} groups of {event.group_size}, {tasks}."
                + "".join(f"\n          since the last time: {change}" for change in event.changed)
            )
        if isinstance(event, RoundFinished):
            return self._round(event)
        text = self._news(event)
        return f"          {text}" if text else ""

    def _news(self, event: Event) -> str:
        """What happened between two rounds; "" when there is nothing to report."""
        match event:
            case SwarmUpdated():
                return self._swarm(event)
            case Evaluated() | BaseAsked():
                return self._held_out_news(event)
            case StateChanged() | ExternalSwitched() | TrialMeasured() | ExamplesRead():
                return in_a_shell(safe_text(event.sentence, 400, lines=False))
            case LogLine():
                return safe_text(event.text, 400, lines=False)
            case FirstSuccess():
                return f"{'first success of another node' if event.node else 'first solved'}: {event.task}"
        return ""

    def _held_out_news(self, event: Evaluated | BaseAsked) -> str:
        if isinstance(event, BaseAsked):
            return describe_base_so_far(event)
        return f"held-out pass@1 {self.counts.at(event.round).when}: {_held_out(event)}"

    def _swarm(self, event: SwarmUpdated) -> str:
        """A line when the swarm is joined or lost; one every round would be too much."""
        if event.connected == self._connected:
            return ""
        self._connected = event.connected
        return f"swarm: {safe_text(event.sentence, 300, lines=False)}"

    def _of_examples(self, event: RoundFinished) -> str:
        loss = "" if event.loss is None else f"loss {event.loss:.3f}"
        parts = [_right(self._reading), loss, f"{event.examples} texts", f"{sum(event.seconds.values()):.1f} s"]
        return f"examples {self.counts.now.steps:>3}  {'  '.join(filter(None, parts))}"

    def _round(self, event: RoundFinished) -> str:
        if event.examples:
            return self._of_examples(event)
        planned = f"/{self._planned}" if self._planned else ""
        took = sum(event.seconds.values())
        rate = event.tokens_generated / max(event.seconds.get("generate", 0.0), 1e-6)
        external = "" if event.reward_external is None else f"  external {event.reward_external:.3f}"
        if event.external_wanted:
            external += f"  took {event.external_groups} of up to {event.external_wanted}"
        share = event.truncated / max(1, event.completions)
        cut = f"cut off {100 * share:.0f} %  " if share > CUT_OFF else ""
        return (
            f"round {self.counts.now.rounds:>4}{planned}  {self._local} {event.reward_local or 0.0:.3f}{external}  "
            f"unequal {event.nonzero_groups}/{event.local_groups}  entropy {_number(event.entropy)}  {cut}"
            f"{rate:,.0f} tok/s  {took:.1f} s"
        )


def _right(event: ExamplesRead | None) -> str:
    """How many of the rows set aside are right, "" where none were read."""
    return f"{event.right}/{event.items} right on rows set aside" if event is not None and event.items else ""


def _held_out(event: Evaluated) -> str:
    comparison = describe_difference(event) if event.round else "the base to compare with"
    sampled = "sampled " if event.greedy is not None else ""
    text = f"{sampled}{format_rate(event.pass_at_1, event.low, event.high)}, {event.items} items"
    return "; ".join(filter(None, (text, comparison, describe_greedy(event))))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# The node's log file: rotated by size, so that it never fills the disk. Libraries log there, never to the terminal.

LARGEST = 4 * 2**20
"""Bytes of one file; with its KEPT predecessors a log takes 20 MiB at most."""
KEPT = 4


def node_logging(path: Path) -> None:
    """Send all logging and warnings of this process to the file."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    warnings.simplefilter("default")
