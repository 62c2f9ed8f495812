"""Screen 3 over a journal of 100,000 groups: how long from a key in its search field until the list is on the screen.

    python tests/benchmarks/bench_rollouts.py [--groups 100000]

A journal of real size (8 attempts a group, 45 common words and rare ones) is written to a temporary folder. Then the
dashboard itself runs over it, in a terminal of 120x36 without a display; words are typed and taken back with and without
filters. Prints one JSON object: how long the index took and its size, the first page of an index that is not there yet,
and of the keys the median, the 95th percentile and the slowest. The load of the machine is printed beside them: others that
work on it make keys slower. Exit code 1 when one took 100 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.many_groups import journal_with
from textual import events
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.history.groups import NEWEST, GroupSource, JournalGroups
from sapo_desktop.dashboard.screens.rollouts.screen import RolloutsScreen
from sapo_desktop.dashboard.state import NodeLink
from sapo_swarm.events import Event
from sapo_swarm.node.checkpoints import folder_bytes

TYPED = ("the answer is seven", "multiply take away", "question 9", "zz", "1234", "a sum of three")
BEFORE = ((), ("t",), ("w", "w"), ("o", "o"), ("v",))
"""Keys that filter, before the words are typed."""
LIMIT_MS = 100.0


class Quiet:
    """A feed that tells nothing: the journal is all there is."""

    controls = False

    def __init__(self, path: Path) -> None:
        self.source = JournalGroups(path)

    async def events(self) -> AsyncIterator[Event | NodeLink]:
        for event in ():
            yield event

    async def command(self, verb: str, **body: float) -> None:
        """Nobody listens."""

    def groups(self) -> GroupSource:
        return self.source

    def upto(self) -> int:
        return NEWEST

    def describe(self) -> str:
        return "a benchmark"

    def now(self) -> float:
        return time.time()


async def _until(pilot: Pilot[object], holds: Callable[[], bool]) -> None:
    while not holds():
        await pilot.pause(0.002)


async def _painted(pilot: Pilot[object], screen: RolloutsScreen) -> None:
    """The list holds what is wanted, and the screen has been drawn since."""
    await _until(pilot, lambda: screen.current)
    drawn = asyncio.Event()
    pilot.app.call_after_refresh(drawn.set)
    await drawn.wait()


async def play(path: Path, cache: Path) -> dict[str, object]:
    app = SapoDashboard(Quiet(path), cache=cache)
    async with app.run_test(size=(120, 36)) as pilot:
        began = time.perf_counter()
        await pilot.press("3")
        screen = app.screen
        assert isinstance(screen, RolloutsScreen)
        await _until(pilot, lambda: bool(screen.shown.groups))
        first = time.perf_counter() - began
        await _until(pilot, lambda: screen.newest.indexed >= screen.newest.of)
        whole = time.perf_counter() - began
        told: list[float] = []
        worked: list[float] = []
        for before in BEFORE:
            for words in TYPED:
                await pilot.press("escape", *before, "slash")
                await _painted(pilot, screen)
                for key in [*words, *["backspace"] * 2]:
                    pressed, work = time.perf_counter(), time.process_time()
                    app.post_message(events.Key(key, key if len(key) == 1 else None))
                    wish = screen.wish
                    await _until(pilot, lambda before=wish: screen.wish is not before)  # type: ignore[misc]
                    await _painted(pilot, screen)
                    told.append(1000 * (time.perf_counter() - pressed))
                    worked.append(1000 * (time.process_time() - work))
        total = screen.newest.of
    told.sort()
    return {
        "groups": total,
        "first page of a new index ms": round(1000 * first),
        "index made in s": round(whole, 1),
        "index MB": round(folder_bytes(cache) / 1e6, 1),
        "keys": len(told),
        "key p50 ms": round(statistics.median(told), 1),
        "key p95 ms": round(told[int(0.95 * len(told))], 1),
        "key worst ms": round(told[-1], 1),
        "processor ms a key, median": round(statistics.median(worked), 1),
        "load of the machine": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = journal_with(Path(name) / "journal.db", args.groups)
        size = path.stat().st_size / 1e6
        told = asyncio.run(play(path, Path(name) / "cache"))
    print(json.dumps({"journal MB": round(size, 1), **told}, indent=1))
    return 0 if float(str(told["key worst ms"])) < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
