"""How far a node steps back for other programs of the processor."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil

from sapo_swarm.node.governor.sensors.device_files import PROC


def step_back(nice: int, proc: Path = PROC) -> None:
    """By that niceness from now on; more than it has, never less. Nothing where the system has no such thing.

    Desktops' Linux shares the processor among sessions first, each with a niceness of its own, and only within a session among
    processes: a node that leads its session (in the background, at login) sets the session's too. In a terminal the session is
    the person's. Windows has classes instead.
    """
    if sys.platform == "win32":
        if nice:
            with contextlib.suppress(psutil.Error, OSError):
                psutil.Process().nice(windows_class(nice))
        return
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nice)
    with contextlib.suppress(OSError, AttributeError):
        if os.getsid(0) == os.getpid():
            with (proc / "self" / "autogroup").open("r+") as group:
                group.write(str(nice))


def windows_class(nice: int) -> int:
    """The priority class that comes nearest: BELOW_NORMAL, from 15 on IDLE. Children of the process inherit it."""
    return 0x40 if nice >= 15 else 0x4000
