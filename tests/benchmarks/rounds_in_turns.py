"""Whole rounds of a node in two checkouts, in turns: processor seconds a round, start-up taken off.

    python tests/benchmarks/rounds_in_turns.py ../before . [--turns 3] [--rounds 30] [--model starter-1m]

Each turn runs `sapo-desktop node` twice in each checkout, for 2 rounds and for --rounds more, one thread, in a home of its own.
Prints the median processor seconds a round of each and the ratio before / after (above 1: the second is faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

START = 2
CALM = "[limits]\npause_on_battery = false\nmax_celsius = 0\nmin_free_memory = 0\nmin_free_disk = 0\nnice = 0\n"


def cpu_seconds(tree: Path, model: str, rounds: int) -> float:
    """Of a node that does so many rounds and ends."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "config.toml").write_text(CALM, "utf-8")
        packages = [str(tree.resolve() / name) for name in ("app", "swarm", "backends", "assets")]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), SAPO_HOME=home, OMP_NUM_THREADS="1")
        flags = ["--silo", "--quiet", "--model", model, "--threads", "1", "--eval-every", "0", "--rounds", str(rounds)]
        flags += ["--trainer", "fake"] if model.startswith("fake") else ["--precision", "float32"]
        command = [sys.executable, "-m", "sapo_desktop", "node", *flags]
        before = os.times()
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, metavar="CHECKOUT", help="before, after")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", default="starter-1m")
    args = parser.parse_args()
    seconds: list[list[float]] = [[], []]
    for turn in range(args.turns):
        for place, tree in enumerate(args.trees) if turn % 2 == 0 else reversed(list(enumerate(args.trees))):
            start, whole = (cpu_seconds(tree, args.model, n) for n in (START, START + args.rounds))
            seconds[place].append((whole - start) / args.rounds)
            print(f"turn {turn + 1}, {tree}: {seconds[place][-1]:.4f} s a round", file=sys.stderr, flush=True)
    ratios = [before / after for before, after in zip(*seconds, strict=True)]
    result = {
        "model": args.model,
        "cpu seconds a round": [round(statistics.median(s), 4) for s in seconds],
        "ratio before / after": round(statistics.median(ratios), 3),
        "fastest": round(min(seconds[0]) / min(seconds[1]), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
