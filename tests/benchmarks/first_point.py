"""How long a person waits after Enter: until something is learned, until the chart shows it, and until a gain is measured.

    python tests/benchmarks/first_point.py smollm2 trades --home FOLDER [--seconds 600]
    python tests/benchmarks/first_point.py qwen-coder reasoning --home FOLDER [--seconds 600]

MODEL is a name of packaging/real_models.py, or a path. The second word is a table of own_tables.py, made into a task with
`tasks new` as a person does, or "reasoning": the twenty tasks of real_reasoning.py. Then `new`, and `node --silo`, which is asked
to stop after so many seconds. The moments come from the node's journal, each with the seconds since the node was started and the
processor seconds that the node and its children had used by then: on a machine that other work shares, these are the figure that
can be compared. A JSON line goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.benchmarks.own_tables import ROWS, SEED, write_table  # noqa: E402
from tests.benchmarks.real_reasoning import TASKS  # noqa: E402
from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.support.person import Person, processor  # noqa: E402
from tests.support.swarm_process import journal  # noqa: E402

from sapo_swarm.events import (  # noqa: E402
    BaseAsked,
    Evaluated,
    Event,
    ExamplesRead,
    GreedyScore,
    RoundFinished,
    RunStarted,
    TrialMeasured,
)

LOOK_S = 0.5
"""Seconds between two readings of the processor time."""


class ProcessorTime:
    """Samples (Unix seconds, processor seconds so far) of this process's descendants, ended ones included, from a thread."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.used: list[float] = []
        self._spent: dict[tuple[int, float], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> ProcessorTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    spent = process.cpu_times()
                    self._spent[process.pid, process.create_time()] = spent.user + spent.system
                except psutil.Error:
                    continue
            self.times.append(time.time())
            self.used.append(sum(self._spent.values()))

    def at(self, moment: float) -> float:
        """Processor seconds by that time."""
        place = bisect_right(self.times, moment)
        return self.used[place - 1] if place else 0.0


def moments(events: list[Event]) -> dict[str, Any]:
    """Name of a moment -> its event, the first of its sort, in order of time."""
    first: dict[str, Any] = {}
    for event in events:
        match event:
            case RunStarted():
                first.setdefault("open", event)
            case TrialMeasured():
                first.setdefault("tried", event)
            case RoundFinished():
                first.setdefault("first step", event)
            case ExamplesRead():
                first.setdefault("first reading", event)
                if event.over:
                    first.setdefault("examples over", event)
            case BaseAsked():
                first.setdefault("base begun", event)
            case Evaluated(round=0):
                first.setdefault("base measured", event)
            case Evaluated():
                first.setdefault("first held-out result", event)
                for score in filter(None, (event, event.greedy)):
                    low = score.so_far.low if score.so_far else score.delta_low
                    if low is not None and low > 0.0:
                        first.setdefault("first held-out gain", event)
    return first


def described(event: Any) -> dict[str, Any]:
    """The figures of an event that matter here."""
    names = ("right", "answers", "items", "questions", "pass_at_1", "delta", "delta_low", "base_missing", "compared")
    names += ("answered", "seconds", "sentence")
    shown = {name: getattr(event, name) for name in names if getattr(event, name, None) not in (None, "")}
    greedy = getattr(event, "greedy", None)
    if isinstance(greedy, GreedyScore):
        shown["greedy"] = {name: getattr(greedy, name) for name in ("pass_at_1", "delta", "delta_low")}
    for score, so_far in ((event, "so_far"), (greedy, "greedy_so_far")):
        if (pairs := getattr(score, "so_far", None)) is not None:
            shown[so_far] = {name: round(getattr(pairs, name), 3) for name in ("items", "base", "now", "low", "high")}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in shown.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", help="a table of own_tables.py, or reasoning")
    parser.add_argument("--home", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    person, base = Person(arguments.home), model_file(arguments.model)
    result: dict[str, Any] = {"model": Path(arguments.model).name, "what": arguments.what}
    with ProcessorTime() as spent:
        tasks = ",".join(TASKS)
        if arguments.what != "reasoning":
            arguments.home.mkdir(parents=True, exist_ok=True)
            table = write_table(arguments.home, arguments.what, ROWS, SEED)
            result["tasks new"] = person.types("tasks", "new", str(table), "--name", "t", "--model", base).line
            tasks = "t"
        person.types("config", "set", "limits.nice", "0")  # other work on the machine would come first
        person.types("new", "m", "--base", base, "--tasks", tasks)
        before, began = spent.used[-1] if spent.used else 0.0, time.time()
        node = person.types("node", "m", "--silo", stop_after=arguments.seconds)
        events = journal(arguments.home)
    result["node"] = node.line | {"cores": len(os.sched_getaffinity(0)), "processor": processor()}
    result["moments"] = {
        name: {"s": round(event.time - began, 1), "cpu_s": round(spent.at(event.time) - before, 1), **described(event)}
        for name, event in moments(events).items()
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
