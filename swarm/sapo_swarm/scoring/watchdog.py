"""What ends a worker process that does not answer in time, or works although nothing is asked of it."""

from __future__ import annotations

import math
import subprocess
import threading
import time

import psutil

REST_S = 10.0
WORK_AT_REST_S = 1.0
"""A worker of which nothing is asked, and which uses so much processor time within REST_S, runs something of a verifier's on."""


class Watchdog:
    """A thread that ends a process once the due time passes; setting a later due time costs no wake-up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: float | None = None
        self._victim: subprocess.Popen[bytes] | None = None
        self._spent: float | None = None
        self._thread: threading.Thread | None = None

    def guard(self, victim: subprocess.Popen[bytes], seconds: float, spent: float | None = None) -> None:
        """Kill the process if neither `extend` nor `release` is called within so many seconds. spent: its processor time, where
        it is killed only if it works on, now or later."""
        with self._condition:
            self._victim, self._due, self._spent = victim, time.monotonic() + seconds, spent
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="scorer-watchdog", daemon=True)
                self._thread.start()
            self._condition.notify()

    def rest(self, victim: subprocess.Popen[bytes]) -> None:
        """Nothing is asked of the process any more: kill it if it works on."""
        self.guard(victim, REST_S, _processor_seconds(victim))

    def works_on(self) -> bool:
        """Whether the process at rest worked on, or is gone."""
        with self._condition:
            return self._works_on()

    def extend(self, seconds: float) -> None:
        """The process has so many seconds more."""
        self._due = time.monotonic() + seconds

    def release(self) -> None:
        """Guard nothing."""
        with self._condition:
            self._due, self._victim, self._spent = None, None, None

    def _works_on(self) -> bool:
        if self._victim is None or self._spent is None:
            return False
        return not _processor_seconds(self._victim) - self._spent <= WORK_AT_REST_S

    def _watch(self) -> None:
        with self._condition:
            while True:
                if self._due is None:
                    if not self._condition.wait(timeout=30) and self._due is None:
                        self._thread = None
                        return
                    continue
                left = self._due - time.monotonic()
                if left > 0:
                    self._condition.wait(left)
                elif self._victim is not None and self._spent is not None and not self._works_on():
                    self._due, self._spent = time.monotonic() + REST_S, _processor_seconds(self._victim)
                elif self._victim is not None:
                    self._victim.kill()
                    self._due = None


def _processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Infinite where it is gone."""
    try:
        spent = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return math.inf
    return float(spent.user + spent.system)
