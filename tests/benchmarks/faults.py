"""Every write, fsync, rename and creation of a node and a coordinator fails once, is cut once, and is killed in once.

python tests/benchmarks/faults.py [--trials N] [--only NAME]. Prints a JSON line a scenario; the exit code is the number of
findings. 1,300 trials take four minutes on two cores. Needs Linux and a C compiler (tests/support/faults/shim.c).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAST = "/dev/shm"
"""A folder in memory, where there is one: an fsync is counted and failed all the same."""


def faults(trials: int, seed: int, only: str = "") -> tuple[str, int]:
    """What the driver said, and the number of findings. trials: a scenario, 0: all that there are."""
    with tempfile.TemporaryDirectory(dir=FAST if os.path.isdir(FAST) else None) as room:
        shim = Path(room) / "shim.so"
        source = ROOT / "tests/support/faults/shim.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        paths = os.pathsep.join([*(p for p in sys.path if p), str(ROOT)])
        environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        driver = [sys.executable, "-m", "tests.support.faults", shim, f"{room}/work", str(trials), str(seed), only]
        done = subprocess.run(driver, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    said, findings = faults(args.trials, args.seed, args.only)
    print(said, end="")
    return findings


if __name__ == "__main__":
    sys.exit(main())
