"""A new user at a shell, for benchmarks: verbs of the app in a home of its own, each with its seconds and its peak of memory."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.swarm_process import journal

from sapo_backends.common import hardware
from sapo_swarm.events import ExamplesRead, RoundFinished, TrialMeasured, encode_event


class VerbFailed(Exception):
    """A verb ended with an error; the message is what it printed."""


@dataclass(frozen=True)
class Ran:
    """What a verb took and printed. cpu_s: of all its threads, which other work on the machine does not lengthen. peak_gb: the
    largest resident memory of one of its processes."""

    verb: str
    seconds: float
    cpu_s: float
    peak_gb: float
    output: str

    @property
    def line(self) -> dict[str, Any]:
        """The line as it was typed, with its cost."""
        cost = {"seconds": round(self.seconds, 1), "cpu_s": round(self.cpu_s, 1), "peak_gb": round(self.peak_gb, 2)}
        return {"line": self.verb, **cost}


class Person:
    """Somebody whose home is empty at first. Nothing in the environment decides for the app: not its threads, nor its home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "SAPO_HOME": str(home)}
        self.environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
        self.environment.pop("OMP_NUM_THREADS", None)

    def types(self, *words: str, stop_after: float = 0.0, first: str = "") -> Ran:
        """Run a verb to its end, or ask it to stop after so many seconds, as Ctrl+C does. first: Python that runs in its process
        before it, for an arm that no setting makes. Raises VerbFailed."""
        self.home.mkdir(parents=True, exist_ok=True)
        output, errors = self.home / "last.out", self.home / "last.err"
        code = f"{first}\nimport sys\nfrom sapo_desktop.__main__ import main\nsys.exit(main())"
        python = [sys.executable, "-c", code] if first else [sys.executable, "-m", "sapo_desktop"]
        began = time.monotonic()
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [*python, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # SIGINT is not ignored there, as it is for a shell's background process
            )
            stopper = threading.Timer(stop_after, lambda: os.kill(process.pid, signal.SIGINT))
            if stop_after:
                stopper.start()
            # wait4 gives the memory of this very process and of those that it waited for; Popen.wait does not.
            _, status, usage = os.wait4(process.pid, 0)
            stopper.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if process.returncode not in ((0, 130, -signal.SIGINT) if stop_after else (0,)):
            tail = errors.read_text("utf-8", "replace")[-2000:] + output.read_text("utf-8", "replace")[-2000:]
            raise VerbFailed(f"{' '.join(words)} ended with {process.returncode}:\n{tail}")
        cpu_s, peak_gb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9
        return Ran(" ".join(words), seconds, cpu_s, peak_gb, output.read_text("utf-8", "replace"))

    def rounds(self) -> dict[str, Any]:
        """What the newest model's journal says of its training: rounds (each an update), those of them that imitated examples,
        tokens, seconds by phase, and what the trial and the readings of the phase of examples said."""
        events = journal(self.home)
        finished = [event for event in events if isinstance(event, RoundFinished)]
        seconds: dict[str, float] = {}
        for phase, spent in (item for event in finished for item in event.seconds.items()):
            seconds[phase] = round(seconds.get(phase, 0.0) + spent, 1)
        return {
            "rounds": sum(event.covers for event in finished),
            "rounds_of_examples": sum(event.covers for event in finished if event.examples),
            "rounds_with_unequal_groups": sum(event.nonzero_groups > 0 for event in finished),
            "tokens_generated": sum(event.tokens_generated for event in finished),
            "tokens_trained": sum(event.tokens_trained for event in finished),
            "phase_s": seconds,
            "examples": [
                json.loads(encode_event(event)) for event in events if isinstance(event, TrialMeasured | ExamplesRead)
            ],
        }


def held_out_scores(compared: dict[str, Any]) -> dict[str, Any]:
    """Base and trained pass@1 with their 95 % intervals by task, and the paired difference, from what `eval --json` prints."""

    def scores(tasks: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
        return {task["task"]: [round(task[key], 4) for key in ("pass_at_1", "low", "high")] for task in tasks}

    return {
        "items": compared["items"],
        "base": scores(compared["tasks_before"]),
        "trained": scores(compared["tasks_after"]),
        "well_formed": {task["task"]: round(task["well_formed"], 3) for task in compared["tasks_after"]},
        "delta": compared["comparison"]["delta"],
    }


def scores_by_temperature(
    compared: dict[str, Any], before: str = "base", after: str = "trained"
) -> dict[str, dict[str, Any]]:
    """Base and trained pass@1 with their 95 % intervals by task, and the paired difference, at each temperature that
    `eval --json` measured: "0", "1". before, after: the names that the verb gave the two sides."""

    def scores(side: str, key: str) -> dict[str, list[float]]:
        tasks = compared[side][key]["tasks"].items()
        return {task: [round(score[part], 4) for part in ("pass_at_1", "low", "high")] for task, score in tasks}

    return {
        key.removeprefix("t"): {
            "items": compared[after][key]["items"],
            "base": scores(before, key),
            "trained": scores(after, key),
            "delta": compared["difference"][key],
        }
        for key in sorted(compared[after])
    }


def processor() -> str:
    """The kind of processor that a figure is of: its name, its cores, its best unit for bfloat16."""
    names = [platform.processor()]
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.partition(":")[2] for line in info.read_text("utf-8").splitlines() if line.startswith("model name")
        ]
    found = hardware.detect_hardware()
    return f"{names[0].strip() or platform.machine()}, {found.cores} cores, {found.matrix_unit or 'no bfloat16'}"
