"""Every write, fsync, rename and creation of the scenarios fails once (ENOSPC, EIO), is cut once, and is killed in once.

Run with the shim preloaded: LD_PRELOAD=shim.so python -m tests.support.faults SHIM FOLDER SAMPLES SEED [NAME]. SAMPLES: trials
a scenario, 0 for all of them. Prints a JSON line a scenario and one a finding; the exit code is the number of findings.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.faults.scenario import Scenario
from tests.support.faults.scenarios import SCENARIOS

from sapo_desktop.errors import exit_code_of

KILLED, FULL = 0, -1
KINDS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "cut": FULL, "killed": KILLED}


def in_child(work: Callable[[Callable[[object], None]], None]) -> tuple[list[Any], int]:
    """What the work told, in a process of its own, and how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        code = 1
        try:
            work(lambda value: os.write(writing, json.dumps(value).encode() + b"\n") and None)
            code = 0
        except BaseException:
            os.write(writing, json.dumps({"unexpected": traceback.format_exc()}).encode() + b"\n")
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        values = [json.loads(line) for line in told]
    return values, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def checks(scenario: Scenario, folder: Path, promised: Sequence[Any], _tell: Callable[[object], None]) -> None:
    """Read what lies there, with nothing failing any more."""
    scenario.check(folder, promised)


def worked(
    scenario: Scenario, folder: Path, arm: Callable[[str, int, int], None], at: int, kind: int, shim: Any
) -> Any:
    """Run the work with one fault: (what was promised, what went wrong in another way than with a sentence, operations)."""

    def work(tell: Callable[[object], None]) -> None:
        def try_(call: Callable[[], Any]) -> bool:
            try:
                call()
            except Exception as error:
                said = str(error)
                known = exit_code_of(error) is not None
                if not known or "\n" in said or not 10 <= len(said) <= 600:
                    tell({"unexpected": "".join(traceback.format_exception(error))})
                return False
            return True

        arm(f"{folder}/", at, kind)
        scenario.work(folder, try_, lambda what: tell({"promised": what}))
        tell({"operations": shim.sapo_count()})

    told, _ = in_child(work)
    return (
        [one["promised"] for one in told if "promised" in one],
        [one["unexpected"] for one in told if "unexpected" in one],
        next((one["operations"] for one in told if "operations" in one), 0),
    )


def main(shim_path: str, room: str, samples: int, seed: int, only: str = "") -> int:
    shim = ctypes.CDLL(shim_path)

    def arm(folder: str, at: int, kind: int) -> None:
        shim.sapo_arm(folder.encode(), at, kind)

    rng, findings = random.Random(seed), 0
    for scenario in (one for one in SCENARIOS if only in one.name):
        template, folder = Path(room) / "template", Path(room) / "work"

        def fresh(template: Path = template, folder: Path = folder) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(template, folder)

        shutil.rmtree(template, ignore_errors=True)
        template.mkdir(parents=True)
        scenario.make(template)
        fresh()
        _, wrong, operations = worked(scenario, folder, arm, 0, 0, shim)
        trials = [(at, name) for at in range(1, operations + 1) for name in KINDS]
        chosen = trials if not samples or samples >= len(trials) else rng.sample(trials, samples)
        bad = [(0, "none", one) for one in wrong] if wrong or not operations else []
        if not operations:
            bad.append((0, "none", "the shim saw nothing"))
        for at, name in chosen:
            fresh()
            promised, wrong, _ = worked(scenario, folder, arm, at, KINDS[name], shim)
            checked, _ = in_child(partial(checks, scenario, folder, promised))
            bad += [(at, name, text) for text in wrong + [one["unexpected"] for one in checked]]
        print(json.dumps({"scenario": scenario.name, "operations": operations, "trials": len(chosen), "bad": len(bad)}))
        for at, name, text in bad[:3]:
            print(json.dumps({"scenario": scenario.name, "at": at, "kind": name, "what": text}))
        findings += len(bad)
    return min(findings, 100)


def run(arguments: Sequence[str]) -> int:
    shim, room, samples, seed, *only = arguments
    return main(shim, room, int(samples), int(seed), *only)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
