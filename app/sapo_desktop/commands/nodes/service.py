"""`sapo-desktop service install|uninstall|status`: whether a node starts at login."""

from __future__ import annotations

import argparse

from sapo_desktop.paths import Home
from sapo_desktop.services.machine import login
from sapo_desktop.services.models import training
from sapo_desktop.settings import editing
from sapo_swarm.node.governor.rules import PRESETS


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument(
        "action",
        choices=["install", "uninstall", "status"],
        help="start now and at every login; stop, and no more at login; how it is",
    )
    parser.add_argument("name", nargs="?", default="", help="install: the model to train; without it the one used last")
    parser.add_argument("--preset", choices=list(PRESETS), help="install: set the limits to this preset first")


def main(args: argparse.Namespace) -> int:
    """Run the action and print the new status; the exit code. Raises AppError."""
    home = Home.find()
    if args.action == "install":
        home.prepare()
        training.model_to_train(home, args.name)  # an unknown model is an error now, not at the next login
        if args.preset:
            editing.apply_preset(home.settings, args.preset)
        print(login.install_login_service(login.login_service(home, args.name)))
    else:
        service = login.login_service(home)
        print(
            login.uninstall_login_service(service)
            if args.action == "uninstall"
            else login.login_service_status(service)
        )
    return 0
