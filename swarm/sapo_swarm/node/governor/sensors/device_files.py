"""What Linux tells in files: power supplies, temperatures, fans, the lid, and how long programs wait for memory.

Of a file that is not there, or that holds nonsense, nothing is known: None. proc, sysfs: Linux' trees, which a test may make.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SYSFS, PROC = Path("/sys"), Path("/proc")
_PROCESSOR = re.compile(
    r"coretemp|k10temp|zenpower|x86_pkg_temp|TCPU|cpu.*|soc.*|.*cpu[-_]?thermal", re.IGNORECASE | re.ASCII
)
_BOARD = "acpitz"
"""A sensor near the processor, where there is no better one."""
_ONLINE = frozenset("12")
"""Of a supply: at a fixed voltage, at one that was agreed on."""
HOTTEST, FASTEST = 150.0, 30_000.0
"""Degrees and revolutions a minute above which a sensor is broken."""


def word(path: Path) -> str:
    """The text of a small file; "" where there is none."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _numbers(paths: Iterable[Path], least: float, most: float) -> Iterator[float]:
    """Whole numbers within bounds, one a file; what is none is left out."""
    for path in paths:
        text = word(path)
        if re.fullmatch(r"-?\d{1,9}", text) and least <= float(text) <= most:
            yield float(text)


def supplies(sysfs: Path) -> tuple[bool | None, float | None]:
    """(on battery, charge in percent). A mouse or a headset has a battery too: its scope is Device, and it does not count."""
    online, states, charges = list[str](), list[str](), list[float]()
    for supply in sorted((sysfs / "class" / "power_supply").glob("*")):
        kind = word(supply / "type")
        if kind in ("Mains", "USB"):
            online.append(word(supply / "online"))
        elif kind == "Battery" and word(supply / "scope") != "Device":
            states.append(word(supply / "status"))
            charges += [min(charge, 100.0) for charge in _numbers([supply / "capacity"], 0, 1000)]
    if not states:
        return None, None
    charge = sum(charges) / len(charges) if charges else None
    return not _ONLINE & set(online) and "Discharging" in states, charge


def celsius(sysfs: Path) -> float | None:
    """The hottest sensor of the processor; else that of the board."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for chip in (sysfs / "class" / "hwmon").glob("hwmon*"):
        if (name := word(chip / "name")) and (_PROCESSOR.fullmatch(name) or name == _BOARD):
            found[name != _BOARD] += _numbers(chip.glob("temp*_input"), 1, 1000 * HOTTEST)
    for zone in (sysfs / "class" / "thermal").glob("thermal_zone*"):
        if (name := word(zone / "type")) and (_PROCESSOR.fullmatch(name) or name == _BOARD):
            found[name != _BOARD] += _numbers([zone / "temp"], 1, 1000 * HOTTEST)
    degrees = found[True] or found[False]
    return max(degrees) / 1000 if degrees else None


def fan(sysfs: Path) -> float | None:
    """The fastest fan, in revolutions a minute."""
    return max(_numbers((sysfs / "class" / "hwmon").glob("hwmon*/fan*_input"), 0, FASTEST), default=None)


def lid_closed(proc: Path) -> bool | None:
    """Of a laptop."""
    states = [word(lid) for lid in (proc / "acpi" / "button" / "lid").glob("*/state")]
    return any(state.endswith("closed") for state in states) if any(states) else None


def memory_wait(proc: Path) -> float | None:
    """Percent of the last ten seconds in which some program waited for memory (pressure stall information)."""
    found = re.match(r"some avg10=(\d{1,3}(?:\.\d{1,4})?) ", word(proc / "pressure" / "memory"))
    return min(float(found[1]), 100.0) if found else None
