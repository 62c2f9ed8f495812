"""The two clocks of a node, and durations and ages in words. One clock is never set and keeps running through a
suspend; the other is the local wall clock."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":
    _STEADY = time.CLOCK_BOOTTIME
elif sys.platform == "darwin":
    _STEADY = time.CLOCK_MONOTONIC


def steady_seconds() -> float:
    """Seconds since some fixed moment. An hour that a person asked for is over after an hour, slept through or not;
    time.monotonic stands still while a Linux or macOS computer sleeps."""
    if sys.platform in ("linux", "darwin"):
        return time.clock_gettime(_STEADY)
    return time.monotonic()


def local_time(moment: float | None = None) -> time.struct_time:
    """Local time at that moment (default: now), in the system's current time zone: a running process keeps the zone
    it started in unless it asks."""
    if hasattr(time, "tzset"):
        time.tzset()
    return time.localtime(moment)


def week_minute(moment: float | None = None) -> int:
    """Minutes since Monday 00:00, local time; see `local_time`."""
    local = local_time(moment)
    return (local.tm_wday * 24 + local.tm_hour) * 60 + local.tm_min


def format_age(seconds: float) -> str:
    """How long ago, or roughly how long, in one unit: "12 s", "65 min", "2 h", "5 d"."""
    seconds = max(seconds, 0.0)
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def format_duration(seconds: float) -> str:
    """How long, in two units: "45 s", "12 min", "1 h 20 min", "6 d 23 h"."""
    whole = max(1, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
