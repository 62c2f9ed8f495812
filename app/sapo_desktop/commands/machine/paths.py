"""`sapo-desktop paths`: where everything is stored."""

from __future__ import annotations

import argparse
import dataclasses

from sapo_desktop.paths import Home
from sapo_desktop.streams import json_line


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(args: argparse.Namespace) -> int:
    """The exit code."""
    home = Home.find()
    rows = {name: str(path) for name, path in dataclasses.asdict(home).items()}
    rows |= {"settings": str(home.settings), "models": str(home.models), "socket": str(home.socket)}
    print(json_line(rows) if args.json else "\n".join(f"{name:<9} {path}" for name, path in rows.items()))
    return 0
