"""Two homes on one machine train on one private task through a coordinator; a third home is in the swarm and accepted nothing.

    python tests/benchmarks/friends.py [--rounds 30] [--engine starter-1m|fake:0.3]

Prints one JSON object: for each friend the rounds, the external groups of the task that its model was trained on and how many
of them had unequal rewards, its held-out pass@1 before and after where it has held-out rows; for the third home every trace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.node_process import sapo  # noqa: E402
from tests.support.swarm_process import coordinator, journal, rounds  # noqa: E402

from sapo_swarm.events import Evaluated, GroupRecorded  # noqa: E402
from sapo_swarm.tasks.own.folder import PREFIX, OwnTask, read_task  # noqa: E402

TASK = "unit_conversion"


async def verb(home: Path, *arguments: str) -> str:
    done = await asyncio.to_thread(sapo, home, *arguments, timeout=3600.0)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def friend(home: Path) -> dict[str, Any]:
    """What a home's journal says."""
    events = journal(home)
    groups = [event.group for event in events if isinstance(event, GroupRecorded)]
    taken = [group for group in groups if group.source == "external" and group.question.ref.dataset == TASK]
    scores = [round(event.pass_at_1, 4) for event in events if isinstance(event, Evaluated)]
    return {
        "rounds": len(rounds(events)),
        "external groups trained on": len(taken),
        "of them with unequal rewards": sum(group.nonzero_advantage for group in taken),
        "authors of them": len({group.node for group in taken}),
        "versions of the task": sorted({group.question.ref.generator for group in taken}),
        "held-out pass@1": scores,
    }


def traces(home: Path, task: OwnTask) -> list[str]:
    """Files of a home that hold a question of the task, or coordinates of it: all that a member sees is that it is offered."""
    words = [PREFIX.encode(), *(task.spec.fill(row).encode() for row in task.train)]
    files = [path for path in home.rglob("*") if path.is_file()]
    return [str(path.relative_to(home)) for path in files if any(word in path.read_bytes() for word in words)]


async def measure(folder: Path, engine: str, count: int) -> dict[str, Any]:
    host, guest, third = (folder / name for name in ("host", "guest", "third"))
    node = ("node", "--model", engine, "--rounds", str(count), "--keep-groups", "0", "--eval-every", str(count))
    node += ("--trainer", "fake") if engine.startswith("fake") else ()
    await verb(host, "tasks", "new", TASK, "--no-model")
    began = time.monotonic()
    async with coordinator(host, "--port", "0") as (invite, _):
        await verb(host, "tasks", "share", TASK)
        guest.mkdir()
        (guest / "invite").write_text(invite)
        found = re.search(r"--yes ([0-9a-f]{64})", await verb(guest, "tasks", "offered", TASK))
        assert found is not None
        await verb(guest, "tasks", "accept", TASK, "--yes", found[1])
        together = [verb(home, *node, "--join", invite, "--tasks", TASK) for home in (host, guest)]
        alone = verb(third, *node, "--join", invite, "--tasks", "basic_arithmetic")
        await asyncio.gather(*together, alone)
    seen = traces(third, read_task(host / "data" / "tasks" / TASK))
    third_groups = [event.group for event in journal(third) if isinstance(event, GroupRecorded)]
    return {
        "engine": engine,
        "seconds": round(time.monotonic() - began),
        "host": friend(host),
        "guest": friend(guest),
        "third": {
            "rounds": len(rounds(journal(third))),
            "tasks in its journal": sorted({group.question.ref.dataset for group in third_groups}),
            "files that hold anything of it": seen,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--engine", default="starter-1m")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), args.engine, args.rounds)), indent=1))


if __name__ == "__main__":
    main()
