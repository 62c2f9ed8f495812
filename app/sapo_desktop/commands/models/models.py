"""`sapo-desktop models`: the models that can be named without downloading anything."""

from __future__ import annotations

import argparse
import json

from sapo_desktop.paths import Home
from sapo_desktop.services.models import runs


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON lines")


def main(args: argparse.Namespace) -> int:
    import sapo_assets

    rows = [{"model": name, "what": "bundled", "path": str(path)} for name, path in sapo_assets.models().items()]
    for run in runs.list_runs(Home.find().runs):
        for folder in sorted((run.folder / "exports").glob("*/config.json")):
            rows.append(
                {"model": str(folder.parent), "what": f"exported from {run.run_id}", "path": str(folder.parent)}
            )
    for row in rows:
        print(json.dumps(row) if args.json else f"{row['model']:<14} {row['what']:<10} {row['path']}")
    if not args.json:
        print("Any Hugging Face folder or hub id works too: sapo-desktop node --model Qwen/Qwen2.5-0.5B-Instruct")
    return 0
