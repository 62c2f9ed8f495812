"""`sapo-desktop replay FILE`: a recorded run in the dashboard. The file is a run's journal.db or JSON lines of events."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument("file", type=Path, help="journal.db of a run, or the output of node --json")
    parser.add_argument(
        "--speed", type=float, default=20.0, help="how many times faster than it happened (default: 20)"
    )


def main(args: argparse.Namespace) -> int:
    """The exit code. Raises UsageError for a recording that cannot be read."""
    from sapo_desktop.services.models.recording import load_recording

    events = load_recording(args.file)  # before the screen is taken: a bad file is one plain line
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.feed import ReplayFeed

    SapoDashboard(ReplayFeed(events, args.speed)).run()
    return 0
