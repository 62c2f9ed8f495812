"""The gates of the coordinator: `python tests/benchmarks/bench_coordinator.py --gate N [--quick] [--store redis]`.

Without --gate all run, one after another; the full ones take about fifteen minutes on two cores that do nothing else.
Exit code 1 when a gate fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "coordinator_gates"))

import bombs
import crash
import forgery
import fuzz
import load
import poison
import sampling
from common import Gate

GATES: dict[int, Callable[[bool, str], Gate]] = {
    1: load.run,
    2: crash.run,
    3: forgery.run,
    4: bombs.run,
    5: fuzz.run,
    6: sampling.run,
    7: poison.run,
    8: sampling.run_flood,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=int, choices=sorted(GATES), action="append")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; no demands on speed")
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    chosen = parser.parse_args(arguments)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    failed = 0
    for number in chosen.gate or sorted(GATES):
        started = time.perf_counter()
        gate = GATES[number](chosen.quick, chosen.store)
        print(f"{gate}\n  ({time.perf_counter() - started:.0f} s)", flush=True)
        failed += not gate.passed
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
