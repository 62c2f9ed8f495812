"""Every benchmark, one after another, each a line of JSON: make bench, or python tests/benchmarks/run.py [--full]

Without --full each takes seconds and shows that it works; with it, the figures that are quoted. Leave the machine alone
meanwhile. The comparison with TRL needs its own environment: sh tests/benchmarks/make_peers.sh
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent.parent / ".venv-peers" / "bin" / "python"


def commands(full: bool) -> list[list[str]]:
    """Script and arguments of every benchmark."""
    peers = ["--peer", str(PEERS)] if PEERS.exists() else []
    rounds = ["bench_round.py", "--shape", "S", "--rounds", "5" if full else "1", *peers]
    large = ["bench_round.py", "--shape", "L", "--rounds", "5", "--peer-accumulation", "4", *peers]
    gates = ["bench_coordinator.py", *([] if full else ["--quick"])]
    return [
        rounds,
        *([large] if full else []),
        ["bench_load.py"],
        ["bench_dashboard.py", "--seconds", "20" if full else "3"],
        gates,
        [*gates, "--store", "redis"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full", action="store_true", help="the figures that are quoted; up to three quarters of an hour"
    )
    args = parser.parse_args()
    if not PEERS.exists():
        print("TRL is left out: sh tests/benchmarks/make_peers.sh makes its environment.", file=sys.stderr)
    failed = []
    for script, *arguments in commands(args.full):
        print(f"# {script} {' '.join(arguments)}", flush=True)
        done = subprocess.run([sys.executable, str(HERE / script), *arguments], check=False, cwd=HERE.parent.parent)
        if done.returncode:
            failed.append(script)
    sys.exit(f"These failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
