"""`sapo-desktop export`: the trained model as a folder that other programs load."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.checkpoints import choose


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("name", nargs="?", default="", help="the model (default: the one trained last)")
    parser.add_argument("--to", dest="folder", type=Path, help="where to (default: exports/ in the model's folder)")
    parser.add_argument("--checkpoint", default="latest", help="latest, base or a round number (default: latest)")


def main(args: argparse.Namespace) -> int:
    from sapo_desktop.services.models import store

    home = Home.find()
    chosen = choose(home, args.name, args.checkpoint)
    name = chosen.checkpoint.name if chosen.checkpoint else "base"
    folder = args.folder or store.find(home, chosen.model).folder / "exports" / name
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
    print(f"Wrote {chosen.label} to {folder}\nMake a model that starts from it: sapo-desktop new NAME --base {folder}")
    return 0
