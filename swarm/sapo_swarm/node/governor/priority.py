"""How far a node steps back for other programs of the processor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sapo_swarm.node.governor.sensors.device_files import PROC


def step_back(nice: int, proc: Path = PROC) -> None:
    """By that niceness from now on; more than it has, never less. Nothing where the system has no such thing.

    Desktops' Linux shares the processor among sessions first, each with a niceness of its own, and only within a session among
    processes: a node that leads its session (in the background, at login) sets the session's too. In a terminal the session is
    the person's.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nice)
    with contextlib.suppress(OSError, AttributeError):
        if os.getsid(0) == os.getpid():
            with (proc / "self" / "autogroup").open("r+") as group:
                group.write(str(nice))
