"""Keeps the machine from going to sleep by itself while the node works: a program of the platform that holds the wish for
as long as it runs, and ends with the node. What the person does (closing the lid, the power key) is never held back."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence

from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.node.governor.sensors.readings import Readings

LOG = logging.getLogger(__name__)
_CONTINUOUS, _SYSTEM_REQUIRED = 0x80000000, 0x00000001


def holder(platform: str = sys.platform) -> Sequence[str]:
    """The program that holds the wish; () where the platform has none."""
    if platform == "darwin":
        return "/usr/bin/caffeinate", "-i", "-w", str(os.getpid())
    if platform.startswith("linux"):
        why = ("--what=idle", "--who=sapo-desktop", "--why=trains a model", "--mode=block")
        return "systemd-inhibit", *why, "tail", f"--pid={os.getpid()}", "-f", "/dev/null"
    return ()


def wanted(limits: Limits, now: Readings, working: bool) -> bool:
    """Only where the person asked for it, while the node works, and never on battery."""
    return limits.keep_awake and working and not now.on_battery


class Awake:
    """Call from one thread."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = holder() if command is None else command
        self._child: subprocess.Popen[bytes] | None = None
        self._wanted = False

    def want(self, wanted: bool) -> None:
        """Keep it awake from now on, or no more. Where that cannot be had, it is logged once and nothing else happens."""
        if wanted == self._wanted:
            if self._child is not None and self._child.poll() is not None:
                self._give_up(f"{self._command[0]} ended by itself")
            return
        self._wanted = wanted
        if sys.platform == "win32":
            import ctypes

            ctypes.windll.kernel32.SetThreadExecutionState(_CONTINUOUS | (_SYSTEM_REQUIRED if wanted else 0))
        elif wanted:
            self._hold()
        else:
            self._let_go()

    def _hold(self) -> None:
        if not self._command:
            return
        try:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        LOG.warning("This machine may go to sleep while the node works: %s", why)
        self._child, self._command = None, ()

    def _let_go(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            child.wait()
