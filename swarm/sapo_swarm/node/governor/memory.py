"""Memory that runs out: the wall that a person may set, how it shows, and what the last session's end says of it.

An engine that is refused memory says so and the node goes on with half (RunControl.failed). A process that the system ends for
want of memory says nothing; but Linux counts these ends, so a session that neither ended by itself nor outlived the count is
known by the next one.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sapo_swarm.node.governor.sensors.device_files import PROC, word
from sapo_swarm.types import UNREADABLE

FILE = "session.json"
LEAST_GB = 0.5


def wall(gb: float) -> bool:
    """From now on this process gets no more memory of its own than that, in GB, or LEAST_GB, which it needs to say anything at
    all; what it asks for beyond is refused. 0 = no wall.

    False where the system has none that holds (only Linux counts what a process really asked for).
    """
    if sys.platform != "linux":
        return False
    import resource

    most, hard = (
        int(max(gb, LEAST_GB) * 1e9) if gb else resource.RLIM_INFINITY,
        resource.getrlimit(resource.RLIMIT_DATA)[1],
    )
    if hard != resource.RLIM_INFINITY:
        most = hard if most == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return True


class LastSession(msgspec.Struct, frozen=True):
    """What a session leaves behind while it runs. boot: of the system; kills: processes that it ended for want of memory by
    then; deaths: sessions before that ended so, one after the other, without a new round."""

    boot: str
    kills: int
    deaths: int = 0
    rounds: int = 0


@contextlib.contextmanager
def session(folder: Path, rounds: int, proc: Path = PROC) -> Iterator[int]:
    """Around a session of the model in that folder: how many before it, in a row, the system ended for want of memory.

    rounds: done by now. Where the system counts no such ends, or the disk refuses the note, it is 0.
    """
    path = folder / FILE
    boot, kills = word(proc / "sys" / "kernel" / "random" / "boot_id"), _kills(proc)
    deaths = 0
    if (last := _read(path)) is not None and kills is not None and last.boot == boot and kills > last.kills:
        deaths = 1 if rounds > last.rounds else last.deaths + 1
    if kills is not None:
        with contextlib.suppress(OSError):
            path.write_bytes(msgspec.json.encode(LastSession(boot, kills, deaths, rounds)))
    try:
        yield deaths
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _kills(proc: Path) -> int | None:
    found = re.search(r"^oom_kill (\d{1,18})$", word(proc / "vmstat"), re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: Path) -> LastSession | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LastSession)
    except (OSError, *UNREADABLE):
        return None
