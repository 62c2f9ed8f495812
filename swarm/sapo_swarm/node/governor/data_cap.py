"""How many bytes of a day the exchange with a swarm may take. It holds the exchange alone: training goes on without it.

The count outlives the node: it is a day's, whichever model trains. A day is the local date; one that lies a day back (a
time zone, a clock that was set) is still the same day, so that no trip begins the count anew.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_swarm.node.clock import local
from sapo_swarm.node.governor.holds import Hold
from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_whole

FILE = "network.json"
CODE = "data_cap"
MB = 10**6


class DataDay(msgspec.Struct, frozen=True):
    """date: local, ISO. used: bytes sent and received on it. most: of the largest exchange on it."""

    date: str = ""
    used: int = 0
    most: int = 0


def on(day: DataDay, date: str) -> DataDay:
    """The count as it is on that date: the same where it is that day's or that of the day after it, else a new one."""
    if day.date == date:
        return day
    with contextlib.suppress(ValueError):
        if datetime.date.fromisoformat(day.date) - datetime.date.fromisoformat(date) == datetime.timedelta(days=1):
            return day
    return DataDay(date)


def counted(day: DataDay, size: int) -> DataDay:
    """After an exchange of so many bytes."""
    return DataDay(day.date, day.used + size, max(day.most, size))


def hold(day: DataDay, limits: Limits) -> Hold | None:
    """Of the exchange, from where another one as large as the day's largest would go beyond the cap. Only another day or
    another limit lifts it: what is used stays used."""
    cap = limits.max_network_mb_a_day
    if not cap or day.used + day.most <= cap * MB:
        return None
    reason = f"{day.used / MB:.1f} of {cap:g} MB of today's data are used"
    return Hold(CODE, reason, "after midnight, or with a larger limits.max_network_mb_a_day", 0.0, floor=True)


def read(path: Path) -> DataDay:
    """As it was kept; a new one where nothing can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DataDay)
    except (OSError, *UNREADABLE):
        return DataDay()


@dataclass
class DataCap:
    """path: where the count is kept. limits: of now. wall: Unix time."""

    path: Path
    limits: Callable[[], Limits]
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._day = read(self.path)
        self._seen = 0

    @property
    def today(self) -> DataDay:
        """The count of now."""
        return on(self._day, time.strftime("%Y-%m-%d", local(self.wall())))

    def count(self, ever: int) -> Hold | None:
        """ever: bytes that the connection sent and received since it was made. What is new is counted and kept; what holds
        the next exchange. A disk that refuses it loses only what the next session would have known."""
        new, self._seen = ever - self._seen, ever
        self._day = counted(self.today, new) if new else self.today
        if new:
            with contextlib.suppress(OSError):
                write_whole(self.path, msgspec.json.encode(self._day), synced=False)
        return hold(self._day, self.limits())
