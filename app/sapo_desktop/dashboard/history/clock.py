"""When which round ran: from rounds to wall-clock time and back, and when nothing ran."""

from __future__ import annotations

from bisect import bisect_right

import msgspec
from msgspec import field
from msgspec.structs import replace

from sapo_desktop.dashboard.history.series import Series

PAUSE_S = 120.0
"""A time in which nothing ran that is longer than this is a gap; shorter ones are bridged."""
_PAUSES = 400

Pause = tuple[float, float]
"""Unix seconds from and to which nothing ran."""


class Clock(msgspec.Struct, frozen=True):
    """ends: Unix seconds of the end of every round, its range beginning where the work on it began."""

    ends: Series = field(default_factory=Series)
    pauses: tuple[Pause, ...] = ()
    """Ascending; of very many the longest."""
    beside: float = 0.0
    """Seconds worked since the last round on something that is no round (an evaluation)."""
    ahead: float = 0.0
    """Seconds that these times are ahead of the wall's clock since that was set back; idle time takes them back."""

    def worked(self, seconds: float) -> Clock:
        """Something ran beside the rounds for so long: no pause."""
        return replace(self, beside=self.beside + seconds)

    def finished(self, round_: float, time: float, seconds: float, covers: int = 1) -> Clock:
        """Round `round_` ended at `time` after so many seconds of work; covers: rounds up to it that are told as one. A clock
        that was set back makes no round shorter than its work."""
        before = self.ends.latest
        if before is None:
            return Clock(self.ends.append(round_, time, covers, time - seconds, time))
        worked = seconds + self.beside
        without_idle = before + worked - time
        set_back = time + self.ahead < before
        ahead = without_idle if set_back else min(self.ahead, max(without_idle, 0.0))
        end = time + ahead
        start = max(end - worked, before)
        pauses = self.pauses
        if start - before > PAUSE_S:
            pauses = _bounded((*pauses, (before, start)))
        return Clock(self.ends.append(round_, end, covers, start, end), pauses, ahead=ahead)

    def paused_at(self, time: float) -> bool:
        """Nothing ran at that time, for longer than PAUSE_S."""
        place = bisect_right(self.pauses, time, key=lambda pause: pause[0]) - 1
        return place >= 0 and time < self.pauses[place][1]

    def time_of(self, round_: float) -> float | None:
        """When that round ended, about; None when there is none yet. Before the first and after the last: their ends."""
        return self.ends.rising_at(round_) if len(self.ends) else None

    def round_at(self, time: float) -> float | None:
        """The round that ran at that time, as a number between rounds; None when there is none yet."""
        return self.ends.x_of_rising(time) if len(self.ends) else None

    @property
    def span(self) -> tuple[float, float] | None:
        """When the first round began and the last one ended; None when there is none yet."""
        spread = self.ends.range()
        return None if spread is None else (spread.low, spread.high)


def _bounded(pauses: tuple[Pause, ...]) -> tuple[Pause, ...]:
    if len(pauses) <= _PAUSES:
        return pauses
    longest = sorted(pauses, key=lambda pause: pause[1] - pause[0])[_PAUSES // 2 :]
    return tuple(sorted(longest))
