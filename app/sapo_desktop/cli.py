"""The command line: which verbs exist and where each one lives. Nothing heavy is imported before a verb is typed."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sapo_backends.checkpoints import hub_cache
from sapo_desktop.commands.help_text import ExamplesFormatter, examples_epilog, grouped_formatter
from sapo_desktop.commands.parsing import VerbParser, no_text, reject_arguments
from sapo_desktop.errors import exit_code_of
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import tokens
from sapo_desktop.streams import to_nowhere
from sapo_swarm.tasks.own import library

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "new": ("models.new", "make a model that starts from a base"),
        "node": ("nodes.node", "train without a screen: one line a round, a summary at the end"),
        "status": ("nodes.control", "what the node is doing now"),
        "pause": ("nodes.control", "stop working within a second, keep everything"),
        "resume": ("nodes.control", "go on"),
        "finish": ("nodes.control", "finish the round in flight, then pause"),
        "snooze": ("nodes.control", "pause for a while, then go on by itself"),
        "run-anyway": (
            "nodes.control",
            "ignore battery, heat and schedule for an hour, never memory and disk; --off ends that",
        ),
        "stop": ("nodes.control", "save and end the node"),
        "service": ("nodes.service", "start the node at login (install), or no more (uninstall); status"),
    },
    "My models": {
        "models": (
            "models.models",
            "list your models; show, rename, duplicate, delete one; prune, bases, fetch, figures",
        ),
        "eval": ("models.evaluate", "compare two checkpoints of a model on the same held-out questions"),
        "compare": ("models.evaluate", "two models, or one and its base, on the same held-out questions"),
        "chat": ("models.chat", "talk to the base and the trained model side by side"),
        "export": ("models.export", "write the trained model for other programs: hf, adapter, gguf or mlx"),
        "serve-model": (
            "models.serve_model",
            "serve a model to other programs: OpenAI's chat completions, on this machine only",
        ),
        "runs": ("models.runs", "when a model was trained, and what was different each time"),
        "rollback": (
            "models.rollback",
            "a model's kept states with their held-out scores; go back to one of them (--to)",
        ),
        "rollouts": ("models.rollouts", "the groups of a model's rounds: filter, read, export as JSON lines"),
        "backup": ("models.backup", "save everything that is yours in one archive: models, own tasks, settings"),
        "restore": ("models.backup", "bring back what an archive of backup holds; what is here stays"),
    },
    "My tasks": {
        "tasks": ("tasks.verb", "list tasks, show sample questions, or make a task of your own from a file"),
    },
    "Swarm": {
        "coordinator": ("swarms.coordinator", "host a swarm: print the invite, serve until stopped"),
        "invite": ("swarms.invite", "let others into the swarm that you host: a line of text"),
        "contribute": ("swarms.contribute", "answer questions yourself and share the attempts with your swarm"),
        "swarm": ("swarms.swarm", "the swarm that you host: status, stop, waiting, approve, export, import"),
        "leave": ("swarms.leave", "leave the swarm and forget its invite"),
        "stay": ("swarms.leave", "end the trial in an open swarm: stay, with normal settings"),
        "ban": ("swarms.invite", "put a node out of the swarm that you host"),
        "directory": ("swarms.directory", "signed lists of swarms: look for a swarm to join, or publish a list"),
        "external": ("nodes.control", "take groups of other nodes into training (on), or none (off)"),
    },
    "Machine and experts": {
        "config": ("machine.config", "show or change settings"),
        "doctor": ("machine.doctor", "check this machine and the installation"),
        "bench": ("machine.bench", "measure this machine's speed with a model, and choose the engine by it"),
        "login": ("models.login", "keep your token of the model hub, for gated and private models; --out forgets it"),
        "paths": ("machine.paths", "where settings, runs, logs and the socket lie"),
        "serve": ("nodes.serve", "the dashboard in a browser, on this machine only"),
        "replay": (
            "nodes.replay",
            "watch a recorded run in the dashboard: hold it, go back and forth, faster and slower",
        ),
        "tour": ("nodes.replay", "two minutes with captions: a recorded swarm of three nodes, in the dashboard"),
        "uninstall": ("models.uninstall", "list what the app made on this machine, and remove it"),
    },
}
"""The verbs in the order of --help: verb -> (module in sapo_desktop.commands, one line of help)."""

RARE = frozenset({"ban", "directory", "external", "paths", "run-anyway", "snooze", "stay"})
"""Verbs that --help names without a description, at the end of each group."""

VERBS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}

DESCRIPTION = """\
Post-train a small language model with reinforcement learning on your own machine, alone or in a swarm.
Without a verb: the dashboard.

SAPO here is Swarm sAmpling Policy Optimization (arXiv 2509.08721): nodes share the text of their attempts.
It is not the Soft Adaptive Policy Optimization that other trainers call by the same letters."""


class _PrintVersion(argparse.Action):
    """Like argparse's version action, but looks the version up on demand: that takes longer than everything else at start-up."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from sapo_desktop import __version__

        print(f"sapo-desktop {__version__}")
        parser.exit()


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The whole parser. Given a verb, only that verb's flags are loaded; the others have just their line of help."""
    top = VerbParser(prog="sapo-desktop", description=DESCRIPTION, formatter_class=grouped_formatter(GROUPS, RARE))
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="show program's version number and exit")
    top.add_argument(
        "--linear",
        action="store_true",
        help="the dashboard in sentences, one column, nothing painted anew: for screen readers (also: ui.linear)",
    )
    top.add_argument(
        "--print",
        choices=["bash", "zsh", "fish", "man"],
        dest="printed",
        help="print the completions of a shell, or the manual page",
    )
    verbs = top.add_subparsers(title="verbs", dest="verb", metavar="VERB")
    for name, (module, line) in VERBS.items():
        about = line[0].upper() + line[1:] + "."
        sub = verbs.add_parser(
            name, help=line, description=about, epilog=examples_epilog(name), formatter_class=ExamplesFormatter
        )
        if verb is None or name == verb:
            importlib.import_module(f"sapo_desktop.commands.{module}").add_arguments(sub, name)
    return top


def _printed(kind: str) -> str:
    """Shell completions or the manual page, with every verb and flag."""
    from sapo_desktop import __version__
    from sapo_desktop.services import terminal_files

    return (
        terminal_files.man_page(build_parser(), __version__)
        if kind == "man"
        else terminal_files.shell_completion(build_parser(), kind)
    )


def run_command_line(arguments: Sequence[str]) -> int:
    """Parse and run; returns the exit code: 0 ok, 1 error, 2 usage, 3 node not running, 4 engine missing."""
    if word := no_text(arguments):
        return _fail(f"{word[:60]!a} holds bytes that are no UTF-8 text. Type it in a terminal that writes UTF-8.", 2)
    typed = next((a for a in arguments if a in VERBS), "")
    top = build_parser(typed)
    args, extra = top.parse_known_args(list(arguments))
    if extra:
        reject_arguments(top, typed, extra)
    module = VERBS[args.verb][0] if args.verb else "nodes.dashboard"
    try:
        if args.printed:
            print(_printed(args.printed), end="", flush=True)
            return 0
        home = Home.find()
        library.set_task_folder(home.tasks)
        hub_cache.set_token_source(lambda: tokens.load_hub_token(home))
        return int(importlib.import_module(f"sapo_desktop.commands.{module}").main(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `sapo-desktop runs | head`
        to_nowhere(sys.stdout.fileno())
        return 0
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        return _fail(str(error), code)


def _fail(message: str, code: int) -> int:
    from sapo_swarm.protocol.safe_text import safe_text

    print(f"sapo-desktop: {safe_text(message)}", file=sys.stderr)  # may quote a file, a model or another machine
    return code
