"""`status`, `pause`, `resume`, `finish`, `snooze`, `run-anyway`, `stop`, `external`: clients of the node's control API.

They print the state after the command, not before it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from pathlib import Path

import msgspec

from sapo_backends.errors import size_text
from sapo_desktop.commands.nodes.node import in_a_shell
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import history, store
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.swarms.trial import contribution_rows
from sapo_desktop.streams import json_line
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.checkpoints import folder_bytes
from sapo_swarm.node.clock import format_age, format_duration
from sapo_swarm.node.control_api import ControlClient, NodeNotRunning, NodeStatus
from sapo_swarm.node.training_count import TrainingCount, count_of
from sapo_swarm.protocol.safe_text import safe_text

_TOLD = ("pause", "resume", "finish", "snooze", "run-anyway")
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of one of the verbs."""
    if verb in {"pause", "snooze", "run-anyway"}:
        default = {"pause": "", "snooze": "15m", "run-anyway": "1h"}[verb]
        parser.add_argument("--for", dest="for_s", default=default, metavar="TIME", help="such as 30s, 15m or 1h")
    if verb == "run-anyway":
        parser.add_argument("--off", action="store_true", help="follow the limits again from now on")
    if verb == "external":
        parser.add_argument("switch", choices=("on", "off"), help="on: also after the held-out tripwire stopped them")
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    if verb == "status":
        parser.add_argument("--watch", action="store_true", help="print a new line whenever something changes")


def main(args: argparse.Namespace) -> int:
    """Send the command and print the resulting state; the exit code. Raises NodeNotRunning, ControlError, UsageError."""
    return asyncio.run(_talk(args))


def parse_duration(text: str) -> float:
    """ "90", "30s", "15m", "1h" in seconds; "" is 0. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower() or "0")
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a time. Write 30s, 15m or 1h.")
    return float(match[1]) * _UNITS[match[2]]


async def _talk(args: argparse.Namespace) -> int:
    home = Home.find()
    if args.verb == "stop":
        return await _stop(home, args.json)
    if args.verb in _TOLD:
        verb = "obey" if getattr(args, "off", False) else args.verb.replace("-", "_")
        for_s = 0.0 if verb == "obey" else parse_duration(getattr(args, "for_s", ""))
        if verb == "snooze" and not for_s:
            raise UsageError("A snooze has an end: write 30s, 15m or 1h. Without an end: sapo-desktop pause")
        status = await supervisor.send_command(home, verb, for_s)
        print(json_line(status) if args.json else describe_status(status))
        return 0
    async with ControlClient(home.socket) as node:
        status = await (node.post(f"external_{args.switch}") if args.verb == "external" else node.status())
        print(json_line(status) if args.json else describe_status(status, await _news(node, status)), flush=True)
        if getattr(args, "watch", False):
            await _watch(node, args.json, status)
    return 0


async def _stop(home: Home, json: bool) -> int:
    """Stop the node; returns when its process is gone."""
    from sapo_desktop.services.swarms import hosting

    status, hosted = await supervisor.shut_down_node(home), hosting.still_open(home)
    if status is None:
        raise NodeNotRunning(f"No node is running. {hosted}".strip())
    last = msgspec.structs.replace(status, state="stopped", sentence="Stopped", phase=None)
    last = await asyncio.to_thread(_as_it_ended, last)
    lines = [f"Stopped: process {status.pid} is gone.", _run(last), *filter(None, [hosted])]
    print(json_line(last) if json else "\n".join(lines))
    return 0


def _as_it_ended(status: NodeStatus) -> NodeStatus:
    """The status with what the model was trained with now that its node is gone: it may have finished a round since."""
    try:
        model = store.read_model(Path(status.folder))
    except AppError:
        return status
    done = max(status.round, history.rounds_behind(model))
    return msgspec.structs.replace(status, round=done, trained=history.training_counts(model.folder).at(done))


async def _watch(node: ControlClient, json: bool, status: NodeStatus) -> None:
    shown = status.sentence
    async for _ in node.events(after=status.seq):
        status = await node.status()
        if status.sentence != shown:
            shown = status.sentence
            print(json_line(status) if json else describe_status(status, await _news(node, status)), flush=True)


async def _news(node: ControlClient, status: NodeStatus) -> SwarmUpdated | None:
    """The node's newest swarm update since it opened the model."""
    if status.mode != "swarm" or status.state == "starting":
        return None
    opened = [event.seq async for event in node.events(kinds=("run_started",), tail=1, follow=False)]
    async for event in node.events(kinds=("swarm",), tail=1, follow=False):
        if isinstance(event, SwarmUpdated) and event.seq > max(opened, default=0):
            return event
    return None


def describe_status(status: NodeStatus, swarm: SwarmUpdated | None = None) -> str:
    """The status in one or two lines, and in a swarm the position there."""
    external = f"\n{safe_text(status.external, 400, lines=False)}" if status.external else ""
    return f"{_sentence(status)}\n{_run(status)} · process {status.pid}{_together(status, swarm)}{external}"


def _sentence(status: NodeStatus) -> str:
    """State, duration, and the node's sentence without repeating the state; keys are replaced by verbs."""
    state = status.state.capitalize()
    sentence = in_a_shell(safe_text(status.sentence, 300, lines=False))
    sentence = sentence.removeprefix(state).lstrip(": ") if sentence.startswith(state) else sentence
    link = " " if sentence.startswith("·") else ": " if sentence else ""
    return f"{state} for {format_duration(time.time() - status.since)}{link}{sentence}"


def _together(status: NodeStatus, swarm: SwarmUpdated | None) -> str:
    if swarm is None:
        return ""
    ago = time.time() - swarm.time
    old = status.state not in ("running", "pausing", "finishing") or ago > swarm.window
    was = f"As it was {format_age(ago)} ago: " if old else ""
    figures = " · ".join(f"{name} {value}" for name, value in contribution_rows(swarm))
    return f"\n{was}{'' if swarm.connected else 'Alone: '}{safe_text(swarm.sentence, 400, lines=False)}\n{figures}"


def _run(status: NodeStatus) -> str:
    """The model, how far it is trained, and its disk space."""
    trained = status.trained or TrainingCount(0, status.round)
    planned = max(0, status.rounds_planned - (status.round - trained.rounds)) if status.rounds_planned else 0
    who = f"Model {status.name}" if status.name else f"Run {status.run_id}"
    size = folder_bytes(Path(status.folder)) if status.disk else 0  # exports too, as on screen 4
    budget = (
        f" ({size_text(status.disk)} of its budget of {size_text(status.disk_budget)})" if status.disk_budget else ""
    )
    disk = f" · {size_text(size)} on disk{budget}" if size else ""
    steps = f"{count_of(trained.steps, 'step')} of examples, " if trained.steps else ""
    practice = " of practice" if trained.steps else ""
    rounds = f"{trained.rounds:,} of {count_of(planned, 'round')}" if planned else count_of(trained.rounds, "round")
    return f"{who} · {steps}{rounds}{practice} done · {status.model} on {status.backend}/{status.device}{disk}"
