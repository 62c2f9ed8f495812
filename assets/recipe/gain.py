"""How much a starter gains by reinforcement learning alone: silo runs, then a paired comparison on held-out questions.

`python -m recipe.gain --model starter-1m --seeds 1 2 3 --work DIR` trains one node a seed with the app's defaults,
compares its last checkpoint with the model it began with, and adds the result to the model's gains.json. Seeds that
the file already has are left alone, so a stopped run goes on where it was.

`--engine mlx --rounds 60 --output FILE` does the same with another engine and length, into a file of its own: learning must
not depend on the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sapo_assets

FILE = "gains.json"


def _verb(home: Path, log: Path, *words: str) -> str:
    """One `sapo-desktop` command in a home of its own; its standard output. Raises CalledProcessError."""
    with log.open("a", encoding="utf-8") as errors:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sapo_desktop", *words],
            env={**os.environ, "SAPO_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=True,
        )
    return done.stdout


def measure(model: str, engine: str, seed: int, rounds: int, items: int, threads: int, work: Path) -> dict[str, Any]:
    """Train and compare one seed; points are percentage points of pass@1 at temperature 1, greedy ones at temperature 0, where
    nothing is gained by drawing more surely what was likeliest before."""
    home = work / f"{model}-{engine}-{seed}"
    home.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    common = ("--seed", str(seed), "--threads", str(threads), "--rounds", str(rounds), "--trainer", engine)
    _verb(home, home / "log", "node", "--silo", "--model", model, *common, "--json")
    trained = time.monotonic() - began
    found, greedy = (
        json.loads(_verb(home, home / "log", "eval", "--items", str(items), "--temperature", heat, "--json"))
        for heat in ("1", "0")
    )
    change, surely = found["comparison"]["delta"], greedy["comparison"]["delta"]
    return {
        "seed": seed,
        "engine": engine,
        "rounds": rounds,
        "minutes": round(trained / 60, 1),
        "items": found["items"],
        "before": 100 * found["pass_at_k_before"]["1"],
        "after": 100 * found["pass_at_k_after"]["1"],
        "points": 100 * change["value"],
        "low": 100 * change["low"],
        "high": 100 * change["high"],
        "greedy": {
            "before": 100 * greedy["pass_at_k_before"]["1"],
            "after": 100 * greedy["pass_at_k_after"]["1"],
            **{key: 100 * surely[key] for key in ("value", "low", "high")},
        },
        "p": found["comparison"]["p_value"],
        "kept_share": found["comparison"]["accuracy_share"],
        "tasks": {task: 100 * delta["value"] for task, delta in found["comparison"]["tasks"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--items", type=int, default=400, help="held-out questions a task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at the same time")
    parser.add_argument("--work", type=Path, default=Path("recipe-work/gain"))
    parser.add_argument("--engine", default="torch", help="torch, mlx, llamacpp+torch")
    parser.add_argument("--output", type=Path, help="by default the model's gains.json, which the card shows")
    arguments = parser.parse_args()
    path = arguments.output or sapo_assets.model_path(arguments.model) / FILE
    kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    missing = [s for s in arguments.seeds if s not in {row["seed"] for row in kept}]

    def one(seed: int) -> None:
        settings = (arguments.rounds, arguments.items, arguments.threads, arguments.work)
        row = measure(arguments.model, arguments.engine, seed, *settings)
        kept.append(row)
        kept.sort(key=lambda r: int(r["seed"]))
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(
            f"seed {seed}: {row['points']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f}) in {row['minutes']} min",
            flush=True,
        )

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, missing))


if __name__ == "__main__":
    main()
