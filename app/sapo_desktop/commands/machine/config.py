"""`sapo-desktop config get|set|reset|path|preset`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.settings import editing
from sapo_swarm.errors import suggest_names
from sapo_swarm.protocol.safe_text import safe_text

KEPT = ("run.model", "run.method", "run.precision", "run.lora_rank")
"""Settings that cannot change in an existing model."""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument(
        "action",
        choices=["get", "set", "reset", "path", "preset"],
        help="show; change; go back to the default; where the file is; how much the node steps back",
    )
    parser.add_argument(
        "key",
        nargs="?",
        default="",
        help="such as run.rounds; get without it shows everything; of preset: eco, balanced, full",
    )
    parser.add_argument("value", nargs="?", help="the new value; lists are separated by commas")


def main(args: argparse.Namespace) -> int:
    """The exit code; an unknown key in the file is reported but is no error. Raises UsageError, AppError."""
    path = Home.find().settings
    if args.action == "path":
        print(path)
        return 0
    if args.action == "set":
        if not args.key or args.value is None:
            raise UsageError("Write: sapo-desktop config set KEY VALUE")
        if args.key == "ui.theme":
            _require_theme(args.value)
        print(f"{args.key} = {editing.change_setting(path, args.key, args.value)}")
        _tell_whose(args.key)
    elif args.action == "reset":
        if not args.key:
            raise UsageError("Write: sapo-desktop config reset KEY")
        strange = args.key in editing.strange_keys(path)
        value = editing.reset_setting(path, args.key) or "(empty)"
        print(f"{args.key} was taken out" if strange else f"{args.key} = {value}   (the default)")
    elif args.action == "preset":
        for row in editing.apply_preset(path, args.key):
            print(f"{row.key} = {row.value}   # {row.help}")
    else:
        _get(path, args.key)
    for sentence in editing.describe_unknown_keys(path):
        print(f"sapo-desktop: {safe_text(sentence, lines=False)}", file=sys.stderr)
    return 0


def _get(path: Path, key: str) -> None:
    if key:
        editing.require_setting(key)
        print(next(safe_text(row.value, lines=False) for row in editing.setting_rows(path) if row.key == key))
        return
    for row in editing.setting_rows(path):
        origin = f"from {path.name}; default {row.default or 'empty'}" if row.saved else "default"
        print(safe_text(f"{row.key} = {row.value or '(empty)'}   ({origin})   # {row.help}", lines=False))


def _require_theme(name: str) -> None:
    from textual.theme import BUILTIN_THEMES

    from sapo_desktop.dashboard.look import THEMES

    names = {*BUILTIN_THEMES, *(theme.name for theme in THEMES)}
    if name not in names:
        raise UsageError(f"There is no theme {name!r}. {suggest_names(name, names)}")


def _tell_whose(key: str) -> None:
    """Say which models a changed run setting applies to: it is only the default of new models."""
    if key in KEPT:
        print("It counts for new models. Make one: sapo-desktop new NAME", file=sys.stderr)
    elif key.startswith("run."):
        flag = key.removeprefix("run.").replace("_", "-")
        print(f"It counts for new models. For one that exists: sapo-desktop node NAME --{flag} VALUE", file=sys.stderr)
