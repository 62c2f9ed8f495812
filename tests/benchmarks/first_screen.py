"""A person's first time at the dashboard: a model and a table dropped on it, Enter, and how long until what the screen says.

    python tests/benchmarks/first_screen.py smollm2 trades --home FOLDER [--size 80x24]

MODEL is a name of packaging/real_models.py, or a path; TABLE one of own_tables.py, or a path. The dashboard runs in a
pseudo-terminal with an empty home and every default. The model's file and the table are dropped on it (a terminal pastes their
paths), and Enter is pressed at whatever asks for it, until the node trains. A JSON line: keys, seconds from the first key to each
moment of the screen and of the node's journal, and what the screen shows at the end. Give it a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.benchmarks.first_point import described, moments  # noqa: E402
from tests.benchmarks.own_tables import ROWS, SEED, write_table  # noqa: E402
from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.support.person import processor  # noqa: E402
from tests.support.swarm_process import journal  # noqa: E402
from tests.support.terminal import Terminal, terminal  # noqa: E402

START, END = "\x1b[200~", "\x1b[201~"
"""What a terminal writes around something that is pasted or dropped."""

READING_S = 2.0
"""How long a person looks at a screen that has come to rest before Enter."""


class Keyboard:
    """Presses keys, counts them, and keeps when which text was on the screen first."""

    def __init__(self, shown: Terminal, says: bool) -> None:
        self.keys = 0
        self.began = 0.0
        self.seen: dict[str, float] = {}
        self._shown, self._says = shown, says

    def press(self, keys: str, count: int = 1) -> None:
        self.began = self.began or time.time()
        self.keys += count
        self._shown.press(keys)

    async def until(self, pattern: str, moment: str, seconds: float = 600.0) -> None:
        """Wait for the pattern on the screen and keep the moment. TimeoutError with the screen's text if it never comes."""
        wanted, over = re.compile(pattern, re.DOTALL), time.monotonic() + seconds
        while not wanted.search(text := self._shown.text()):
            if time.monotonic() > over:
                raise TimeoutError(f"{pattern!r} never showed:\n{text}")
            await asyncio.sleep(0.1)
        self.seen[moment] = round(time.time() - self.began, 1) if self.began else 0.0
        if self._says:
            print(f"--- {moment}, after {self.seen[moment]} s, {self.keys} keys\n{text}", file=sys.stderr, flush=True)

    async def reads(self) -> None:
        """Wait until the screen has not changed for READING_S."""
        text, since = "", time.monotonic()
        while time.monotonic() - since < READING_S:
            if (now := self._shown.text()) != text:
                text, since = now, time.monotonic()
            await asyncio.sleep(0.1)


def trains(home: Path) -> bool:
    """Whether a node has begun a model there."""
    return any(home.rglob("journal.db"))


async def first_time(base: Path, table: Path, home: Path, columns: int, rows: int, says: bool) -> dict[str, Any]:
    """What one person sees, from an empty home to the end of the run."""
    own = ["env", "-u", "OMP_NUM_THREADS", f"SAPO_HOME={home}"]  # all threads, and no compiled code from another home
    async with terminal(home.parent / "unused", [*own, sys.executable, "-m", "sapo_desktop"], columns, rows) as shown:
        person = Keyboard(shown, says)
        await person.until(r"Enter", "questions")
        await asyncio.sleep(1.0)  # nobody drops a file sooner
        person.press(f"{START}{base}{END}")
        await person.until(re.escape(base.stem[:12]), "model taken")
        person.press(f"{START}{table}{END}")
        await person.until(re.escape(table.name), "table taken")
        while not trains(home):
            await person.until(r"Enter [a-z]", f"Enter {person.keys - 1}", 300.0)
            await person.reads()
            if trains(home) or not re.search(r"Enter [a-z]", shown.text()):
                continue
            footer = next(line for line in shown.text().splitlines() if re.search(r"Enter [a-z]", line))
            person.press("\r")
            await shown.shows(lambda text, asked=footer: asked not in text or trains(home))
            if person.keys > 20:
                raise TimeoutError(f"Twenty keys and nothing trains:\n{shown.text()}")
        await person.until(r"Round \d|[Ee]xamples", "node on the screen")
        await person.until(r"Held-out.*\d\d? of \d+ right|of \d+ right", "first result on the screen", 1200.0)
        await person.until(r"Finished", "finished", 1800.0)
        events = journal(home)
        return {
            "keys": person.keys,
            "screen_s": person.seen,
            "node": {n: {"s": round(e.time - person.began, 1), **described(e)} for n, e in moments(events).items()},
            "last": shown.text().splitlines(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("table")
    parser.add_argument("--home", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--size", default="80x24", metavar="COLUMNSxROWS")
    parser.add_argument("--screens", action="store_true", help="print the screen at each moment to standard error")
    arguments = parser.parse_args()
    arguments.home.mkdir(parents=True)
    table = Path(arguments.table)
    if not table.is_file():
        table = write_table(arguments.home, arguments.table, ROWS, SEED)
    columns, rows = (int(part) for part in arguments.size.split("x"))
    base = Path(model_file(arguments.model))
    result = asyncio.run(first_time(base, table, arguments.home / "home", columns, rows, arguments.screens))
    machine = {"cores": len(os.sched_getaffinity(0)), "processor": processor()}
    print(json.dumps({"model": base.name, "table": table.name, "size": arguments.size, **machine, **result}))


if __name__ == "__main__":
    main()
