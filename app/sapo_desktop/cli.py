"""The command line: which verbs exist and where each one lives. Nothing heavy is imported before a verb is typed."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sapo_desktop import __version__
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.streams import to_nowhere
from sapo_swarm.tasks.own import library

VERBS: dict[str, tuple[str, str]] = {
    "node": ("nodes.node", "train without a screen: one line a round, a summary at the end"),
    "coordinator": ("swarms.coordinator", "host a swarm: print the invite, serve until stopped"),
    "invite": ("swarms.invite", "let others into the swarm that you host: a line of text and a QR code"),
    "ban": ("swarms.invite", "put a node out of the swarm that you host"),
    "swarm": ("swarms.swarm", "the swarm that you host: status, stop, export, import"),
    "swarm-sim": ("swarms.swarm_sim", "load a coordinator on this machine with simulated nodes"),
    "contribute": ("swarms.contribute", "answer questions yourself and share the attempts with your swarm"),
    "leave": ("swarms.leave", "leave the swarm and forget its invite"),
    "status": ("nodes.control", "what the node is doing now"),
    "pause": ("nodes.control", "stop working within a second, keep everything"),
    "resume": ("nodes.control", "go on"),
    "finish": ("nodes.control", "finish the round in flight, then pause"),
    "snooze": ("nodes.control", "pause for a while, then go on by itself"),
    "run-anyway": ("nodes.control", "ignore battery and heat for an hour"),
    "stop": ("nodes.control", "save and end the node"),
    "external": ("nodes.control", "take groups of other nodes into training (on), or none (off)"),
    "new": ("models.new", "make a model that starts from a base"),
    "eval": ("models.evaluate", "compare two checkpoints of a model on the same held-out questions"),
    "compare": ("models.evaluate", "two models, or one and its base, on the same held-out questions"),
    "chat": ("models.chat", "talk to the base and the trained model side by side"),
    "export": ("models.export", "write the trained model for other programs: hf, adapter, gguf or mlx"),
    "serve-model": (
        "models.serve_model",
        "serve a model to other programs: OpenAI's chat completions, on this machine only",
    ),
    "lab": ("machine.lab", "run experiments with many nodes on one machine, and report on them"),
    "runs": ("models.runs", "when a model was trained, and what was different each time"),
    "uninstall": ("models.uninstall", "list what the app made on this machine, and remove it"),
    "models": ("models.models", "list your models; show, rename, duplicate, delete one; free space"),
    "tasks": (
        "tasks.verb",
        "list tasks, show sample questions, or make a task of your own from a file (new, check, show)",
    ),
    "config": ("machine.config", "show or change settings"),
    "paths": ("machine.paths", "where settings, runs, logs and the socket lie"),
    "bench": ("machine.bench", "measure this machine's speed with a model, and choose the engine by it"),
    "doctor": ("machine.doctor", "check this machine and the installation"),
    "serve": ("nodes.serve", "the dashboard in a browser, on this machine only"),
    "replay": ("nodes.replay", "watch a recorded run in the dashboard"),
}
"""verb -> (module in sapo_desktop.commands, one line of help)."""

DESCRIPTION = """\
Post-train a small language model with reinforcement learning on your own machine, alone or in a swarm.
Without a verb: the dashboard.

SAPO here is Swarm sAmpling Policy Optimization (arXiv 2509.08721): nodes share the text of their attempts.
It is not the Soft Adaptive Policy Optimization that other trainers call by the same letters."""


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The whole parser; with a verb, only that verb's own flags are loaded (the others just have a line of help)."""
    top = argparse.ArgumentParser(
        prog="sapo-desktop", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"sapo-desktop {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB")
    for name, (module, line) in VERBS.items():
        sub = verbs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if verb is None or name == verb:
            importlib.import_module(f"sapo_desktop.commands.{module}").add_arguments(sub, name)
    return top


def run(arguments: Sequence[str]) -> int:
    """Parse and run; returns the exit code: 0 ok, 1 error, 2 usage, 3 node not running, 4 engine missing."""
    typed = next((a for a in arguments if a in VERBS), "")
    args = parser(typed).parse_args(list(arguments))
    module = VERBS[args.verb][0] if args.verb else "nodes.dashboard"
    library.use(Home.find().tasks)
    try:
        return int(importlib.import_module(f"sapo_desktop.commands.{module}").main(args))
    except AppError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `sapo-desktop runs | head`
        to_nowhere(sys.stdout.fileno())
        return 0
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        return _fail(str(error), known)


def _known(error: Exception) -> int | None:
    """The exit code of an error of the lower floors, None for a bug."""
    from sapo_backends.base import BackendError, BackendUnavailable
    from sapo_lab.schema import BadExperiment
    from sapo_swarm.coordinator.store.base import StoreError
    from sapo_swarm.node.control.api import ControlError, NodeNotRunning
    from sapo_swarm.node.storage.journal import JournalError
    from sapo_swarm.protocol.client import CoordinatorError
    from sapo_swarm.tasks.catalogue import UnknownTask
    from sapo_swarm.tasks.own.errors import BadTask

    codes: tuple[tuple[type[Exception], int], ...] = (
        (NodeNotRunning, 3),
        (BackendUnavailable, 4),
        (UnknownTask, 2),
        (BadTask, 2),
        (BadExperiment, 2),
        (BackendError, 1),
        (ControlError, 1),
        (CoordinatorError, 1),
        (StoreError, 1),
        (JournalError, 1),
        (OSError, 1),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)


def _fail(message: str, code: int) -> int:
    print(f"sapo-desktop: {message}", file=sys.stderr)
    return code
