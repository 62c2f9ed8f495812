"""`sapo-desktop replay FILE`: a recorded run in the dashboard. The file is a model's journal.db or JSON lines of events."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument("file", type=Path, help="a model, a journal.db, or the output of node --json")
    parser.add_argument(
        "--speed", type=float, default=20.0, help="how many times faster than it happened (default: 20)"
    )


def _journal(path: Path) -> Path:
    """A file stays what it is; a name that is no file may be a model's. Raises UsageError."""
    from sapo_desktop.paths import Home
    from sapo_desktop.services.models.shelf import store

    known = {model.name: model.folder for model in store.all_models(Home.find())}
    return path if path.exists() else known.get(str(path), path)


def main(args: argparse.Namespace) -> int:
    """The exit code. Raises UsageError for a recording that cannot be read."""
    from sapo_desktop.services.models.recording import load_recording

    events = load_recording(_journal(args.file))  # before the screen is taken: a bad file is one plain line
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.feed import ReplayFeed

    SapoDashboard(ReplayFeed(events, args.speed)).run()
    return 0
