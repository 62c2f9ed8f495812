"""`sapo-desktop serve`: the dashboard in a browser, on this machine only. Two tabs are two clients of one node."""

from __future__ import annotations

import argparse
import shlex
import sys

from sapo_desktop.errors import EngineMissing


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("--port", type=int, default=8642, help="TCP port on 127.0.0.1 (default: 8642)")


def main(args: argparse.Namespace) -> int:
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise EngineMissing(
            'The dashboard in a browser needs textual-serve: pip install "sapo-desktop[serve]"'
        ) from error
    command = f"{shlex.quote(sys.executable)} -m sapo_desktop"
    Server(command, host="127.0.0.1", port=args.port, title="sapo-desktop").serve()
    return 0
