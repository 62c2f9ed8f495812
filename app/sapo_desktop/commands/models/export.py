"""`sapo-desktop export`: the trained model as a folder that other programs load."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.checkpoints import choose


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("folder", nargs="?", type=Path, help="where to (default: exports/ in the run's folder)")
    parser.add_argument("--run", default="", metavar="ID", help="which run (default: the latest)")
    parser.add_argument("--checkpoint", default="latest", help="latest, base or a round number (default: latest)")


def main(args: argparse.Namespace) -> int:
    from sapo_desktop.services.models import runs

    home = Home.find()
    chosen = choose(home, args.run, args.checkpoint)
    name = chosen.checkpoint.name if chosen.checkpoint else "base"
    folder = args.folder or runs.find(home.runs, args.run).folder / "exports" / name
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty. Name another folder.")
    engine = chosen.load(lambda fraction, phrase: None)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        engine.export(partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        engine.close()
    print(f"Wrote {chosen.label} to {folder}\nTrain on from it: sapo-desktop node --model {folder}")
    return 0
