"""`sapo-desktop mcp`: some verbs as tools of the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from sapo_backends.packages import install_command
from sapo_desktop.errors import EngineMissing


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb has no arguments."""


def main(args: argparse.Namespace) -> int:
    """Serve until the client closes; the exit code. Raises EngineMissing."""
    if importlib.util.find_spec("mcp") is None:
        raise EngineMissing(f"This needs the package mcp: {install_command('mcp')}")
    from sapo_desktop.services.nodes import tools

    if sys.stdin.isatty():
        print("This speaks to a program, not to a person: give it the command sapo-desktop mcp.", file=sys.stderr)
    tools.build_mcp_server().run("stdio")
    return 0
