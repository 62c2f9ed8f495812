"""`sapo-desktop models figures NAME`: a run's metrics for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sapo_desktop import umask
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, typed_target
from sapo_desktop.services.models import recording
from sapo_desktop.services.models.figures import FORMATS, KINDS, FigureJob, figure_rows, write_figures
from sapo_desktop.streams import print_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that only this action has."""
    formats = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--format", choices=list(FORMATS), default="csv", help=f"figures: {formats} (default: csv)")
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="figures: the file to write")
    parser.add_argument("--force", action="store_true", help="figures: in the place of what lies there")


def export_figures(home: Home, args: argparse.Namespace) -> int:
    """Write the figures; the exit code. Raises UsageError, AppError, JournalError."""
    if args.output is None:
        raise UsageError("Say where to: sapo-desktop models figures NAME --format csv -o figures.csv")
    umask.as_in_the_shell()
    name, path = recording.find_recording(home, *args.names)
    print_progress(0.0, "reading")
    events = recording.load_recording(path, KINDS) if path.exists() else []
    rows = list(figure_rows(events))
    try:
        write_figures(args.format, FigureJob(name, rows, typed_target(args.output), args.force, print_progress))
    finally:
        print_progress(1.0, f"figures of {name}")
    rounds = sum(row.covers for row in rows)
    print(f"Wrote the figures of {name}, {rounds:,} rounds in {len(rows):,} rows, to {args.output}")
    if any(row.covers > 1 for row in rows):
        print(
            "Rounds of long ago are kept in blocks: covers says how many, counts and seconds are sums, figures means.",
            file=sys.stderr,
        )
    return 0
