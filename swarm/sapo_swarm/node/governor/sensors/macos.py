"""How hard macOS holds itself back because it is warm. It tells no temperature without root; this it tells everybody."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

from sapo_swarm.node.governor.sensors.message_bus import said

LOOK_EVERY_S = 5.0
NAMES = ("nominal", "moderate", "heavy", "trapping", "sleeping")
"""Of the levels 0 to 4, as Apple's powermetrics spells them. From "heavy" on the processor is slowed down."""
NOTIFIED = ("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
LIMITS = ("/usr/bin/pmset", "-g", "therm")
_SLOWED = ((100, 0), (80, 1), (50, 2), (1, 3))
"""Percent of its speed that the processor is left at least -> level, for macOS versions that tell no level."""
Ask = Callable[[Sequence[str]], str]


class ThermalPressure:
    """Asks at most every LOOK_EVERY_S seconds. platform: as sys.platform has it. ask: what a program prints."""

    def __init__(
        self, platform: str = sys.platform, ask: Ask = said, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._here, self._looked = platform == "darwin", float("-inf")
        self._known: int | None = None

    def read(self) -> int | None:
        """The level, 0 to 4; None where it cannot be read."""
        if self._here and self._clock() - self._looked >= LOOK_EVERY_S:
            self._looked = self._clock()
            self._known = notified(self._ask(NOTIFIED))
            if self._known is None:
                self._known = limited(self._ask(LIMITS))
        return self._known


def notified(reply: str) -> int | None:
    """The level from notifyutil's line `com.apple.system.thermalpressurelevel 0`."""
    found = re.fullmatch(r"\S+ (\d)", reply.strip())
    return int(found[1]) if found and int(found[1]) < len(NAMES) else None


def limited(reply: str) -> int | None:
    """The level by what pmset says: the limits `CPU_Speed_Limit = 72` and `CPU_Scheduler_Limit = 100` of Intel's, or notes that
    nothing was recorded."""
    limits = [int(percent) for percent in re.findall(r"CPU_S(?:peed|cheduler)_Limit\s*=\s*(\d{1,3})\b", reply)]
    if not limits:
        return 0 if re.search(r"No thermal warning level has been recorded", reply) else None
    left = min(limits)
    return next((level for least, level in _SLOWED if left >= least), 4)
