"""The doctor's lines on what the limits can be held by: each sensor with what it says now, or that it is not available."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sapo_desktop.services.machine.finding import Finding
from sapo_swarm.node.clock import age
from sapo_swarm.node.governor import rules
from sapo_swarm.node.governor.machine import Machine
from sapo_swarm.node.governor.rules import Limits
from sapo_swarm.node.governor.sensors import NAMES, PROC, SYSFS


def findings(folder: Path, sysfs: Path = SYSFS, proc: Path = PROC) -> Iterator[Finding]:
    """One line a sensor. folder: on the disk that is watched. sysfs, proc: Linux' trees."""
    now = Machine(folder, sysfs, proc).readings(idle=True, metered=True)
    power = None if now.on_battery is None else ("on battery" if now.on_battery else "plugged in")
    if power and now.charge is not None:
        power = f"{power}, {now.charge:.0f} %"
    yield _line("battery", power, "pause_on_battery, slow_on_battery and min_charge")
    yield _line("heat", None if now.celsius is None else f"{now.celsius:.0f} °C", "slow_celsius and max_celsius")
    pressure = None if now.thermal_pressure is None else NAMES[now.thermal_pressure]
    yield _line("thermal pressure", pressure, "slow_thermal_pressure")
    yield _line("fan", None if now.fan_rpm is None else f"{now.fan_rpm:.0f} turns a minute", "slow_fan_rpm")
    waits = None if now.memory_wait is None else f"programs wait for it {now.memory_wait:.0f} % of the time"
    yield _line("memory pressure", waits, "slow_memory_wait")
    yield _line("lid", None if now.lid_closed is None else ("closed" if now.lid_closed else "open"), "pause_lid_closed")
    metered = None if now.metered is None else ("paid by volume" if now.metered else "not metered")
    yield _line("network", metered, "pause_on_metered")
    touched = None if now.idle_s is None else f"last touch of a keyboard or mouse {age(now.idle_s)} ago"
    yield _line("activity", touched, "pause_when_active and slow_when_active")


def data(path: Path, limits: Limits) -> Finding:
    """What of today's data is used. path: of the count."""
    day = rules.DataCap(path, lambda: limits).today
    if (hold := rules.hold(day, limits)) is not None:
        return Finding(
            "note", "data", f"{hold.reason}: no exchange with a swarm until {hold.lifts}; training goes on alone"
        )
    cap = limits.max_network_mb_a_day
    of = f" of {cap:g}" if cap else ""
    return Finding(
        "ok", "data", f"{day.used / rules.MB:.1f}{of} MB exchanged with swarms today{'' if cap else ', no cap'}"
    )


def _line(what: str, says: str | None, settings: str) -> Finding:
    if says is None:
        return Finding("note", what, f"not available here: {settings} never hold{'' if ' and ' in settings else 's'}")
    return Finding("ok", what, says)
