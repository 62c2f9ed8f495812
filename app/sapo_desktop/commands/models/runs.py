"""`sapo-desktop runs`: when a model was trained, and what changed each time; `runs check`: whether its record and journal are
sound."""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_desktop.services.models.shelf import history, mending, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.streams import json_line


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("words", nargs="*", metavar="[check] [NAME]", help="the model (default: the one used last)")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="with check: mend the record and the journal; the old ones stay beside them",
    )
    parser.add_argument("--json", action="store_true", help="the sessions as JSON lines")


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    checking = args.words[:1] == ["check"]
    names = args.words[1:] if checking else args.words
    if len(names) > 1 or (args.repair and not checking):
        raise UsageError("Write: sapo-desktop runs [NAME], or sapo-desktop runs check [NAME] [--repair]")
    home = Home.find()
    home.prepare()
    name = names[0] if names else ""
    if checking and (broken := store.find_unreadable_model(home, name)) is not None and broken.damaged:
        if not args.repair:
            print(broken.sentence)
            return 1
        name = _mend(home, broken)
    model = store.find_model(home, name)
    return _check(home, model, args.repair) if checking else _list(model, args.json)


def _list(model: Model, as_json: bool) -> int:
    training = history.load_history(model.folder)
    for session in training.sessions:
        if as_json:
            print(json_line({"model": model.name, **msgspec.to_builtins(session)}))
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.time))
        at = history.session_start(training.counts.at(session.round))
        print(f"{model.name:<20} {when}  {at:<27}  {session.mode:<5}  {history.describe_session(session)}")
    if not training.sessions and not as_json:
        print(f"{model.name} has not been trained yet. Train it: sapo-desktop node {model.name}")
    if training.problem:
        print(training.problem, file=sys.stderr)
    return 0


def _mend(home: Home, broken: store.UnreadableModel) -> str:
    """Repair the model's record; returns its name."""
    with NodeLock(home.lock):
        model = mending.repair_record(home, broken)
    print(
        f"{model.name}: {model.folder / store.RECORD} is made anew of its journal, which does not tell everything: learning"
    )
    print("rate, lengths and more are as in your settings for new models. Look them over before you train on:")
    print(quote_command("sapo-desktop", "models", "show", model.name, "--json"))
    return model.name


def _check(home: Home, model: Model, repair: bool) -> int:
    """Check the journal; exit code 0 if it is sound or was repaired."""
    from sapo_swarm.node.journal import check_journal, repair_journal

    journal = model.folder / "journal.db"
    if not journal.exists():
        print(f"{model.name} has no journal yet: it has not been trained.")
        return 0
    check = check_journal(journal)
    print(f"{model.name}: {check.sentence}")
    if check.sound:
        return 0
    if not repair:
        print(f"Mend it: sapo-desktop runs check {model.name} --repair")
        return 1
    with NodeLock(home.lock):
        mended = repair_journal(journal)
    print(f"Mended: {mended.events:,} events are kept. The journal as it was: {mended.aside}")
    return 0
