"""`sapo-desktop login`: save the token of the model hub, which gated and private models need."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import sys

from sapo_desktop.paths import Home
from sapo_desktop.services.bases import tokens
from sapo_desktop.services.tasks import judging


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("--out", action="store_true", help="forget the token")
    parser.add_argument(
        "--judge", action="store_true", help="the key of the judge of judged tasks, instead of the hub's token"
    )


def main(args: argparse.Namespace) -> int:
    """Reads the token from the terminal without echo, or from a pipe; never from the command line, which others can see."""
    home = Home.find()
    home.prepare()
    keep = judging.keep_key if args.judge else tokens.save_hub_token
    if args.out:
        print(keep(home, ""))
        return 0
    label = "Key of the judge" if args.judge else "Token of the hub"
    typed = ""
    with contextlib.suppress(EOFError):  # ctrl+D
        typed = getpass.getpass(f"{label} (not shown): ") if sys.stdin.isatty() else sys.stdin.readline()
    if not typed.strip():
        print("No token was typed: nothing was changed.", file=sys.stderr)
        return 2
    print(keep(home, typed))
    return 0
