"""`sapo-desktop runs`: the sessions of a model: when it was trained, and what was different each time."""

from __future__ import annotations

import argparse
import json
import sys
import time

import msgspec

from sapo_desktop.paths import Home
from sapo_desktop.services.models import history, store
from sapo_desktop.services.models.adopt import adopt


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("name", nargs="?", default="", help="the model (default: the one used last)")
    parser.add_argument("--json", action="store_true", help="as JSON lines")


def main(args: argparse.Namespace) -> int:
    home = Home.find()
    home.prepare()
    for sentence in adopt(home):
        print(sentence, file=sys.stderr)
    model = store.find(home, args.name)
    found = history.story(model.folder)
    for session in found.sessions:
        if args.json:
            print(json.dumps({"model": model.name, **msgspec.to_builtins(session)}))
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.time))
        what = "; ".join(session.changed) or ("begun" if not session.round else "continued")
        print(f"{model.name:<20} {when}  from round {session.round + 1:>6,}  {session.mode:<5}  {what}")
    if not found.sessions and not args.json:
        print(f"{model.name} has not been trained yet. Train it: sapo-desktop node {model.name}")
    if found.problem:
        print(found.problem, file=sys.stderr)
    return 0
