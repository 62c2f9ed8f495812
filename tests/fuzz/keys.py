"""Keys at random, faster than anybody types, on every kind of dashboard: python tests/fuzz/keys.py [--seconds 60] [--seed N]

Each seed is a dashboard of some size and the keys that it gets, now and then with a terminal that changes its size. It must
neither end with an error nor keep a worker for ever, and its feed must be followed at the end. A finding is printed with its
seed, and the exit code is 1; `--seed N --seconds 0` plays that one again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.scenes import application
from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from sapo_desktop.dashboard.app import SapoDashboard

KINDS = ("swarm", "swarm", "swarm", "silo", "first run", "waiting", "gone", "paused", "replay", "ascii")
SIZES = ((80, 24), (120, 36), (200, 60), (60, 15), (40, 10))
LETTERS = "12345abcdefghijklmnopqrstuvwxyzFRTXP?/+-<> ="
OTHERS = [
    "enter",
    "escape",
    "tab",
    "shift+tab",
    "up",
    "down",
    "left",
    "right",
    "home",
    "end",
    "pageup",
    "pagedown",
    "f1",
    "f2",
    "ctrl+p",
    "backspace",
    "delete",
    "ctrl+u",
]
GAPS = (0.0, 0.0, 0.003, 0.03)
"""Seconds between two keys at most."""


def key(name: str) -> events.Key:
    """As a terminal's driver sends it."""
    return events.Key(_character_to_key(name), name) if len(name) == 1 else events.Key(name, None)


async def played(seed: int) -> str:
    """What went wrong; "" nothing."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    app = application(kind)
    try:
        async with asyncio.timeout(120), app.run_test(size=rng.choice(SIZES)) as pilot:
            await typed(pilot, rng)
            return "" if app.return_code is not None or app._exit else await rested(app, pilot, kind)
    except Exception as error:
        return "".join(traceback.format_exception(error))


async def typed(pilot: Pilot[object], rng: random.Random) -> None:
    """The keys, and enough of Escape to be on a screen again."""
    app, gap = pilot.app, rng.choice(GAPS)
    names = [rng.choice([*LETTERS, *OTHERS]) for _ in range(rng.randint(5, 80))] + ["escape"] * 12
    for name in names:
        if app._exit:
            return
        app.post_message(key(name))
        if rng.random() < 0.02:
            await pilot.resize_terminal(*rng.choice(SIZES))
        await asyncio.sleep(rng.random() * gap)


async def rested(app: SapoDashboard, pilot: Pilot[object], kind: str) -> str:
    """What is wrong once the keys are over and what they began has had its time."""
    await pilot.pause(0.6)
    if app._exit or kind == "first run":
        return ""
    if not app.begun:
        return "the feed is not followed"
    try:
        await asyncio.wait_for(app.workers.wait_for_complete(), 20)
    except TimeoutError:
        return f"these do not end: {[worker.name for worker in app.workers]}"
    except WorkerCancelled:
        pass
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    end, seed, found = time.monotonic() + args.seconds, args.seed, 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["SAPO_HOME"] = home
        os.chdir(home)  # an export writes to a file of whatever name was typed
        while True:
            if wrong := asyncio.run(played(seed)):
                found += 1
                print(f"seed {seed}:\n{wrong}", flush=True)
            seed += 1
            if time.monotonic() >= end:
                break
    print(f"{seed - args.seed} dashboards, {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
