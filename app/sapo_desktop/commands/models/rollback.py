"""`sapo-desktop rollback`: a model's kept checkpoints, and going back to one of them.

Nothing is lost: the state before it stays a checkpoint, so it can be undone the same way.
"""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.streams import json_line


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="the model (default: the one trained last)")
    parser.add_argument(
        "--to",
        default="",
        metavar="NUMBER|best|best-greedy",
        help="go back to this kept state: the checkpoint of that number, or the one with the best held-out pass@1 when sampled "
        "at temperature 1, or when answering greedily (temperature 0) as chat does (default: list the kept states)",
    )
    parser.add_argument("--json", action="store_true", help="the kept states as JSON lines; with --to, what was done")


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    home = Home.find()
    home.prepare()
    model = store.find_model(home, args.name, trained=True)
    return _go_back(home, model, args) if args.to else _list(model, args.json)


def _go_back(home: Home, model: Model, args: argparse.Namespace) -> int:
    from sapo_desktop.services.models import going_back  # numpy

    state = going_back.resolve_kept_state(model, going_back.load_kept_states(model), args.to.strip().lower())
    sentence = asyncio.run(going_back.go_back(home, model, state.round))
    done = store.read_model(model.folder)
    data = {"model": done.name, "restored": state.round, "rounds": done.rounds_done, "sentence": sentence}
    print(json_line(data) if args.json else sentence)
    return 0


def _list(model: Model, as_json: bool) -> int:
    from sapo_desktop.services.models import going_back

    states = going_back.load_kept_states(model)
    if as_json:
        for state in states:
            print(json_line({"model": model.name, **msgspec.to_builtins(state)}))
        return 0
    print("\n".join([f"Kept states of {model.name}", *going_back.kept_state_table(states), going_back.LEGEND]))
    print(f"Go back to one: sapo-desktop rollback {model.name} --to NUMBER   (or best, or best-greedy)")
    return 0
