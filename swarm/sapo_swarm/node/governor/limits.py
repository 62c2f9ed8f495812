"""When a node should hold back: pure rules over readings of the machine.

Every rule has two thresholds and a dwell time, so that a value near the line does not make training flap. A
coordinator can never change them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.node.governor import schedule


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the person allows. Temperatures in degrees Celsius, sizes in GiB."""

    pause_on_battery: Annotated[bool, Meta(description="Pause while the laptop runs on battery")] = True
    max_celsius: Annotated[float, Meta(description="Pause above this CPU temperature; 0 = never", ge=0, le=120)] = 90.0
    min_free_memory: Annotated[float, Meta(description="Pause below this much free memory, in GiB", ge=0)] = 0.5
    min_free_disk: Annotated[float, Meta(description="Pause below this much free disk, in GiB", ge=0)] = 0.5
    schedule: Annotated[
        str, Meta(description="Work only in these hours, such as mon-fri 18:00-08:00, sat-sun; empty = always")
    ] = ""
    pause_when_active: Annotated[bool, Meta(description="Pause while somebody uses keyboard or mouse")] = False
    away_minutes: Annotated[
        float, Meta(description="Minutes without a touch until the person counts as away", ge=1, le=1440)
    ] = 5.0
    nice: Annotated[
        int, Meta(description="How far the node steps back for other programs (Unix niceness)", ge=0, le=19)
    ] = 10

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence when the schedule is none."""
        schedule.parse(self.schedule)


class Readings(msgspec.Struct, frozen=True):
    """The machine at one moment; None where it cannot be read. memory and disk in bytes.

    idle_s: seconds since somebody touched keyboard or mouse. week_minute: minutes since Monday 00:00, local time.
    """

    on_battery: bool | None = None
    celsius: float | None = None
    free_memory: int | None = None
    free_disk: int | None = None
    idle_s: float | None = None
    week_minute: int | None = None


class Hold(msgspec.Struct, frozen=True):
    """Why the node holds back: a stable code and one sentence. since: monotonic seconds."""

    code: str
    sentence: str
    since: float


DWELL_S = 20.0
"""A hold lasts at least this long."""
TOUCH_S = 30.0
"""Keyboard or mouse touched within so many seconds: somebody is there."""
_GIB = 2**30


def decide(limits: Limits, now: Readings, held: Hold | None, clock: float) -> Hold | None:
    """The hold that applies, or None to run. While held, the way back needs a margin and DWELL_S seconds."""
    for rule in (_machine, _out_of_hours, _person):
        if (hold := rule(limits, now, held, clock)) is not None:
            return hold
    if held is not None and clock - held.since < DWELL_S:
        return held
    return None


def _machine(limits: Limits, now: Readings, held: Hold | None, clock: float) -> Hold | None:
    """Battery, heat, memory, disk."""
    back = held is not None
    if limits.pause_on_battery and now.on_battery:
        return _hold("battery", "Paused: on battery · r runs anyway for 1 h", held, clock)
    warm = limits.max_celsius - (8.0 if back else 0.0)
    if limits.max_celsius and now.celsius is not None and now.celsius > warm:
        return _hold("heat", f"Paused: {now.celsius:.0f} °C, cooling down · r runs anyway for 1 h", held, clock)
    slack = 1.25 if back else 1.0
    if now.free_memory is not None and now.free_memory < limits.min_free_memory * _GIB * slack:
        free = now.free_memory / _GIB
        return _hold("memory", f"Paused: only {free:.1f} GiB of memory free · close something", held, clock)
    if now.free_disk is not None and now.free_disk < limits.min_free_disk * _GIB * slack:
        free = now.free_disk / _GIB
        return _hold("disk", f"Paused: only {free:.2f} GiB of disk free · make room and it goes on", held, clock)
    return None


def _out_of_hours(limits: Limits, now: Readings, held: Hold | None, clock: float) -> Hold | None:
    if now.week_minute is None or not (wait := schedule.opens(schedule.parse(limits.schedule), now.week_minute)):
        return None
    opening = schedule.spoken(now.week_minute + wait)
    return _hold("schedule", f"Paused: out of hours until {opening} · r runs anyway for 1 h", held, clock)


def _person(limits: Limits, now: Readings, held: Hold | None, clock: float) -> Hold | None:
    """Holds at a touch, lets go when nothing was touched for away_minutes."""
    if not limits.pause_when_active or now.idle_s is None:
        return None
    there = held is not None and held.code == "person_active"
    if now.idle_s >= (60 * limits.away_minutes if there else TOUCH_S):
        return None
    sentence = f"Paused: you are using the computer (goes on {limits.away_minutes:g} min after) · r runs anyway for 1 h"
    return _hold("person_active", sentence, held, clock)


def _hold(code: str, sentence: str, held: Hold | None, clock: float) -> Hold:
    since = held.since if held is not None and held.code == code else clock
    return Hold(code, sentence, since)
