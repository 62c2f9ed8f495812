"""How long ago somebody last touched keyboard or mouse. None where the platform does not say; never what was typed.

Linux: the terminals' own clocks (any terminal, a remote one too), on GNOME and KDE the desktop's, and logind's hint. macOS:
the input system's registry entry. Windows: GetLastInputInfo.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sapo_swarm.node.governor.sensors.message_bus import SessionIdle, call, said

LOOK_EVERY_S = 5.0
AGAIN_S = 60.0
"""A way that did not answer is asked again after so long: a desktop starts after the node at login, a busy machine is slow."""
_DESKTOPS = (
    ("org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core", "org.gnome.Mutter.IdleMonitor.GetIdletime"),
    ("org.freedesktop.ScreenSaver", "/ScreenSaver", "org.freedesktop.ScreenSaver.GetSessionIdleTime"),
)
"""Name on the session bus, object, method; each answers in milliseconds."""
Ask = Callable[[], float | None]
"""Seconds; inf: not known now; None: no answer."""


class IdleClock:
    """Asks at most every LOOK_EVERY_S seconds; a way that does not answer only every AGAIN_S."""

    def __init__(self, ways: Sequence[Ask] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ways = dict.fromkeys(platform_ways() if ways is None else ways, -math.inf)
        self._clock = clock
        self._looked = -LOOK_EVERY_S
        self._seconds: float | None = None

    def seconds(self) -> float | None:
        """Seconds without a touch, by the way that saw the latest one."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            answers = {way: way() for way, due in self._ways.items() if now >= due}
            self._ways |= {way: now + AGAIN_S for way, answer in answers.items() if answer is None}
            self._seconds = min((a for a in answers.values() if a is not None and math.isfinite(a)), default=None)
            return self._seconds
        return None if self._seconds is None else self._seconds + now - self._looked


def platform_ways() -> list[Ask]:
    """The ways of asking that this platform may have; each answers None where it has not."""
    if sys.platform == "darwin":
        return [_registry]
    if sys.platform == "win32":
        return [_last_input]
    return [_terminals, *(_on_bus(*names) for names in _DESKTOPS), SessionIdle()]


def _terminals() -> float | None:
    """Terminal devices keep when they were last read, to about eight seconds."""
    devices = [*Path("/dev/pts").glob("[0-9]*"), *Path("/dev").glob("tty[1-9]*")]
    return _since(devices, time.time())


def _since(devices: Iterable[Path], now: float) -> float | None:
    ago = []
    for device in devices:
        try:
            ago.append(now - device.stat().st_atime)
        except OSError:  # closed meanwhile
            continue
    return min((seconds for seconds in ago if seconds >= 0), default=None)  # less: the clock was set back since


def _on_bus(name: str, path: str, method: str) -> Ask:
    return lambda: milliseconds(call("session", name, path, method))


def milliseconds(reply: str) -> float | None:
    """Seconds from a D-Bus reply such as "(uint64 61234,)"."""
    found = re.search(r"\(uint\d+ (\d+),?\)", reply)
    return int(found[1]) / 1e3 if found else None


def _registry() -> float | None:
    return nanoseconds(said(["/usr/sbin/ioreg", "-c", "IOHIDSystem", "-d", "4"]))


def nanoseconds(reply: str) -> float | None:
    """Seconds from ioreg's line `"HIDIdleTime" = 61234000000`."""
    found = re.search(r'"HIDIdleTime" = (\d+)', reply)
    return int(found[1]) / 1e9 if found else None


def _last_input() -> float | None:
    if sys.platform != "win32":
        return None
    import ctypes

    class LastInput(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("tick", ctypes.c_uint))

    answer = LastInput(ctypes.sizeof(LastInput), 0)
    if not ctypes.windll.user32.GetLastInputInfo(ctypes.byref(answer)):
        return None
    return ((ctypes.windll.kernel32.GetTickCount() - answer.tick) & 0xFFFFFFFF) / 1e3
