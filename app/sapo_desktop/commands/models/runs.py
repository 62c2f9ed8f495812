"""`sapo-desktop runs`: what has been trained here."""

from __future__ import annotations

import argparse
import json
import time

from sapo_desktop.paths import Home
from sapo_desktop.services.models import runs


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("run", nargs="?", default="", help="show the checkpoints of this run")
    parser.add_argument("--json", action="store_true", help="as JSON lines")


def main(args: argparse.Namespace) -> int:
    home = Home.find()
    if args.run:
        run = runs.find(home.runs, args.run)
        for path in sorted((run.folder / "checkpoints").glob("round-*")):
            print(json.dumps({"checkpoint": path.name, "path": str(path)}) if args.json else path)
        return 0
    found = runs.list_runs(home.runs)
    if not found and not args.json:
        print("There is no run yet. Start one: sapo-desktop node --silo")
    for run in found:
        if args.json:
            row = {
                "run": run.run_id,
                "rounds_done": run.rounds_done,
                "model": run.config.model,
                "folder": str(run.folder),
            }
            print(json.dumps(row))
            continue
        planned = f"/{run.config.rounds}" if run.config.rounds else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed))
        rounds = f"{run.rounds_done}{planned}"
        print(f"{run.run_id:<36} {rounds:>9} rounds  {run.config.model:<14} {run.config.algorithm:<8} {when}")
    return 0
