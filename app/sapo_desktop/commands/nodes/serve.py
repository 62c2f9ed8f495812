"""`sapo-desktop serve`: the dashboard in a browser, on this machine only. Two tabs are two clients of one node."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from functools import partial

from sapo_backends.packages import install_command
from sapo_desktop.errors import EngineMissing, UsageError


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument(
        "--port", type=int, default=8642, help="TCP port on 127.0.0.1; 0 = any free one (default: 8642)"
    )


def main(args: argparse.Namespace) -> int:
    """Serve until stopped; the exit code. Raises AppError."""
    if not 0 <= args.port < 65535:
        raise UsageError("--port is a number from 0 to 65534.")
    if importlib.util.find_spec("textual_serve") is None:
        raise EngineMissing(f"The dashboard in a browser needs textual-serve: {install_command('textual-serve')}")
    from sapo_desktop.services import browser

    with browser.open_dashboard_socket(args.port) as bound:
        asyncio.run(browser.serve_dashboard(bound, partial(print, flush=True)))
    return 0
