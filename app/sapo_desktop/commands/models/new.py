"""`sapo-desktop new NAME --base BASE`: a model that starts from a base."""

from __future__ import annotations

import argparse

import msgspec

from sapo_backends.checkpoints import locate
from sapo_desktop import settings
from sapo_desktop.commands.parsing import VerbParser
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import card, fetching
from sapo_desktop.services.models.shelf import keeping
from sapo_desktop.services.tasks import looking
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig

EVERYDAY = (
    "base",
    "from",
    "tasks",
    "preset",
    "examples",
    "rounds",
    "method",
    "eval-every",
    "seed",
    "max-new-tokens",
    "json",
)
"""Flags that --help explains; --help-all explains all of them."""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("name", help="what it is called: letters, digits, dots, dashes, underscores")
    parser.add_argument(
        "--base",
        dest="model",
        default=argparse.SUPPRESS,
        metavar="BASE",
        help="starter, starter-1m, a model of this computer as `models bases` names it, a GGUF file, a Hugging Face folder, "
        "or a hub id (default: run.model of the settings)",
    )
    flags.add_run_flags(parser, [name for name in RunConfig.__struct_fields__ if name != "model"])
    if isinstance(parser, VerbParser):
        parser.shorten_help(*EVERYDAY)


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    home = Home.find()
    home.prepare()
    config = flags.run_config(settings.load_settings(home.settings), args, fetching.fetch_base_metadata)
    model = keeping.create_model(home, args.name, config)
    defaults = msgspec.structs.asdict(settings.load_settings(home.settings).run)
    own = [
        f"{key.replace('_', ' ')} {settings.format_value(value)}"
        for key, value in msgspec.structs.asdict(config).items()
        if value != defaults[key] and key != "model"
    ]
    print(f"{model.name} starts from {model.record.base}{', ' + ', '.join(own) if own else ''}.")
    for sentence in looking.foreign_form(msgspec.structs.replace(config, model=model.record.base)):
        print(sentence)
    timed = model.record.base not in locate.BUNDLED  # a bundled one's time is known after a round
    time = card.expected_training_time(home, config, measure=False) if timed else None
    if time is not None and time.parts:
        print(f"Here it takes, about: {time.parts}.")
    print(f"Train it: sapo-desktop node {model.name}, or press c on it in sapo-desktop, screen 4.")
    return 0
