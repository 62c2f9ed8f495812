"""The two clocks of a node: one that nothing sets and that goes on through a suspend, and the wall clock of where it is."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":
    _STEADY = time.CLOCK_BOOTTIME
elif sys.platform == "darwin":
    _STEADY = time.CLOCK_MONOTONIC


def steady() -> float:
    """Seconds since some moment. An hour that a person asked for is over after an hour, slept through or not; time.monotonic
    stands still while a Linux or macOS computer sleeps."""
    if sys.platform in ("linux", "darwin"):
        return time.clock_gettime(_STEADY)
    return time.monotonic()


def local(moment: float | None = None) -> time.struct_time:
    """Local time of that moment, or of now, in the zone that the system is in now: a process that runs keeps the zone that it
    began in unless it asks."""
    if hasattr(time, "tzset"):
        time.tzset()
    return time.localtime(moment)


def week_minute(moment: float | None = None) -> int:
    """Minutes since Monday 00:00, local time; see `local`."""
    found = local(moment)
    return (found.tm_wday * 24 + found.tm_hour) * 60 + found.tm_min
