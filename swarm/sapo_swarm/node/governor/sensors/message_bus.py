"""What Linux' services tell over D-Bus, asked with the program gdbus: is the session idle, is the network metered."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

LIMIT_S = 2.0
LOOK_EVERY_S = 30.0
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1/session/auto")
_NETWORK = ("org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager")


def said(command: Sequence[str]) -> str:
    """What a program printed; "" when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",  # the registry of a Mac holds names in any encoding
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def call(bus: str, name: str, path: str, method: str, *arguments: str) -> str:
    """The reply of a method as gdbus prints it, such as "(<uint32 1>,)"; "" where nobody answers. bus: session or system."""
    return said(["gdbus", "call", f"--{bus}", "-d", name, "-o", path, "-m", method, *arguments])


def _property(name: str, path: str, interface: str, prop: str) -> str:
    return call("system", name, path, "org.freedesktop.DBus.Properties.Get", interface, prop)


class SessionIdle:
    """logind's hint, which desktops set after their own time without a touch.

    Desktops that never set it leave it "not idle" for ever: only once it was seen to be set does "not idle" mean a person.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._used = clock, False

    def __call__(self) -> float | None:
        """Seconds without a touch; inf: not known now; None: there is no logind."""
        hint = _property(*_LOGIND, "org.freedesktop.login1.Session", "IdleHint")
        if "<true>" not in hint:
            return None if not hint else 0.0 if self._used else math.inf
        self._used = True
        since = _property(*_LOGIND, "org.freedesktop.login1.Session", "IdleSinceHintMonotonic")
        found = re.search(r"uint64 (\d{1,18})", since)
        return max(0.0, self._clock() - int(found[1]) / 1e6) if found else math.inf


class Metered:
    """Whether the network is paid by volume, by NetworkManager's word; asked at most every LOOK_EVERY_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked = clock, -math.inf
        self._known: bool | None = None

    def read(self) -> bool | None:
        """None where nobody says. NetworkManager's guesses count as answers."""
        if sys.platform.startswith("linux") and self._clock() - self._looked >= LOOK_EVERY_S:
            self._looked = self._clock()
            answer = re.search(r"uint32 (\d+)", _property(*_NETWORK, _NETWORK[0], "Metered"))
            self._known = {"1": True, "3": True, "2": False, "4": False}.get(answer[1]) if answer else None
        return self._known
