"""The coordinator's gates: `python tests/benchmarks/bench_coordinator.py [--gate N] [--store sqlite|redis|both] [--quick]`.

Every gate on every store is a process of its own with a budget of seconds; one that takes longer is ended, and fails. Prints
each gate with its figures, then one table; --log FILE adds a JSON line a gate as soon as it has run. Gates 5 and 7 ask nothing of
the machine's speed; the others on both stores take about twenty minutes on two cores that do nothing else, since gate 1 holds
ten thousand nodes for five minutes, twice. Exit code 1 when a gate fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent / "coordinator_gates"))

import bombs
import crash
import forgery
import fuzz
import load
import poison
import sampling
from common import Gate

Run = Callable[[bool, str], Gate]
GATES: dict[int, tuple[Run, float]] = {
    1: (load.run, 480.0),
    2: (crash.run, 200.0),
    3: (forgery.run, 120.0),
    4: (bombs.run, 150.0),
    5: (fuzz.run, 240.0),
    6: (sampling.run, 150.0),
    7: (poison.run, 600.0),
    8: (sampling.run_flood, 150.0),
}
"""Each gate, and the seconds it may take."""


def here(number: int, store: str, quick: bool) -> dict[str, object]:
    """Run one gate in this process: its line of the log."""
    started = time.perf_counter()
    gate = GATES[number][0](quick, store)
    seconds = round(time.perf_counter() - started, 1)
    return {"gate": number, "store": store, "pass": gate.passed, "seconds": seconds, **gate.plain()}


def child(number: int, store: str, quick: bool, patience: float) -> dict[str, object]:
    """Run one gate in a process group of its own, within its budget."""
    budget = GATES[number][1] * patience
    command = [sys.executable, __file__, "--child", "--gate", str(number), "--store", store]
    process = subprocess.Popen(
        [*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    line: dict[str, object] = {"gate": number, "store": store, "pass": False, "seconds": budget, "title": ""}
    try:
        told = process.communicate(timeout=budget)[0].splitlines()
        line |= json.loads(told[-1]) if told and process.returncode in (0, 1) else {"title": "ended by an error"}
    except subprocess.TimeoutExpired:
        line["title"] = "over its budget"
    finally:  # also when this is interrupted: its coordinator must not stay behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return line | {"budget_s": budget, "load": round(os.getloadavg()[0], 1)}


def shown(line: dict[str, object]) -> str:
    """A line of the log for people."""
    figures, demands = line.get("figures", {}), line.get("demands", {})
    assert isinstance(figures, dict)
    assert isinstance(demands, dict)
    rows = [f"Gate {line['gate']} {line['title']}: {'PASS' if line['pass'] else 'FAIL'} ({line['seconds']} s)"]
    rows += [f"  {name}: {value}" for name, value in figures.items()]
    return "\n".join([*rows, *(f"  [{'x' if met else ' '}] {name}" for name, met in demands.items())])


def table(lines: list[dict[str, object]]) -> str:
    """All gates at a glance: what was missed stands in its row."""
    rows = ["gate  store   result  seconds  missed"]
    for line in lines:
        demands = line.get("demands") or {str(line["title"]): False}
        assert isinstance(demands, dict)
        missed = "; ".join(name for name, met in demands.items() if not met)
        result = "pass" if line["pass"] else "FAIL"
        rows.append(f"{line['gate']!s:<6}{line['store']!s:<8}{result:<8}{line['seconds']!s:<9}{missed}".rstrip())
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=int, choices=sorted(GATES), action="append")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; no demands on speed")
    parser.add_argument("--store", choices=["sqlite", "redis", "both"], default="sqlite")
    parser.add_argument("--log", type=Path, help="file to which each gate adds a JSON line")
    parser.add_argument("--patience", type=float, default=1.0, help="times the budgets, for a busy machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        line = here(chosen.gate[0], chosen.store, chosen.quick)
        print(json.dumps(line))
        return int(not line["pass"])
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    lines = []
    for number in chosen.gate or sorted(GATES):
        for store in ("sqlite", "redis") if chosen.store == "both" else (chosen.store,):
            lines.append(child(number, store, chosen.quick, chosen.patience))
            print(shown(lines[-1]), flush=True)
            if chosen.log is not None:
                with chosen.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(lines[-1]) + "\n")
    print(table(lines))
    return int(not all(line["pass"] for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
