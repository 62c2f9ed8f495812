"""Replays a recording: at any speed, from any place, paused, back and forth; captions say what there is to see."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sapo_desktop.dashboard.state import NodeLink, ReplayCaption, ReplayRewound
from sapo_desktop.errors import CommandFailed, UsageError
from sapo_swarm.events import Event, RoundFinished
from sapo_swarm.node.training_count import TrainingCounts

if TYPE_CHECKING:
    from sapo_desktop.dashboard.history.groups import GroupSource, RecordedGroups

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 20000.0)
STEP = 0.05
"""Share of a recording that one seek covers if there are no captions."""


class ReplayFeed:
    """A recorded stream of events, replayed `speed` times as fast as it happened."""

    controls = False

    def __init__(
        self,
        recording: Sequence[Event],
        speed: float = 1.0,
        start: float | None = None,
        captions: Sequence[ReplayCaption] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """speed 0: send everything at once, then end. start: Unix seconds in the recording; earlier events are sent at once."""
        self.recording, self.speed, self.captions = fix_timestamps(recording), speed, captions
        self.held = False
        self._clock = clock
        self._first, self._last = (self.recording[0].time, self.recording[-1].time) if recording else (0.0, 0.0)
        self._at = self._first if start is None else min(max(start, self._first), self._last)
        self._since: float | None = None
        self._told = 0
        self._moved = asyncio.Event()
        self._groups: RecordedGroups | None = None

    # What is watched

    def groups(self) -> GroupSource | None:
        """The groups of the recording, numbered by position."""
        from sapo_desktop.dashboard.history.groups import RecordedGroups

        self._groups = self._groups or RecordedGroups(self.recording)
        return self._groups

    def upto(self) -> int:
        """The number of events sent so far."""
        return self._told

    def describe(self) -> str:
        """One phrase on what is being watched, for the help screen."""
        return f"a recording of {len(self.recording):,} events"

    def now(self) -> float:
        """The recording's clock; it stands still before the start, while paused, and after the end."""
        if self.speed <= 0:
            return self._last if self._since is not None else self._first
        if self._since is None or self.held:
            return self._at
        return min(self._at + (self._clock() - self._since) * self.speed, self._last)

    async def events(self) -> AsyncIterator[Event | NodeLink | ReplayRewound]:
        """The events at the replay's pace. Unless the speed is 0 it never ends: the person may go back."""
        self._since = self._clock()
        while True:
            while self._told < len(self.recording) and self.recording[self._told].time <= self.now():
                self._told += 1
                yield self.recording[self._told - 1]
            if self.speed <= 0:
                return
            await self._until_next()
            if self._told and self.recording[self._told - 1].time > self.now():
                self._told = 0
                yield ReplayRewound()

    async def _until_next(self) -> None:
        """Wait for the next event's time, or for a seek, pause or change of speed."""
        ahead = None
        if self._told < len(self.recording) and not self.held:
            ahead = max(self.recording[self._told].time - self.now(), 0.0) / self.speed
        self._moved.clear()
        try:
            async with asyncio.timeout(ahead):
                await self._moved.wait()
        except TimeoutError:
            return

    async def command(self, verb: str, **body: float) -> None:  # noqa: ARG002 - as every feed
        """Always raises CommandFailed: a recording takes no commands."""
        raise CommandFailed("This is a recording: there is no node to tell. Start one: sapo-desktop")

    # Playback controls

    @property
    def steers(self) -> bool:
        """Whether seeking, speed and pausing have an effect."""
        return self.speed > 0

    @property
    def badge(self) -> str:
        """For the header: that this is a recording, its speed, and how much has been replayed."""
        share = (self.now() - self._first) / (self._last - self._first) if self._last > self._first else 1.0
        if not self.steers:
            return "REPLAY"
        state = "held" if self.held else "end" if self.now() >= self._last else f"{round(self.speed, 2):g}x"
        return f"REPLAY {state} {100 * share:.0f} %"

    @property
    def caption(self) -> ReplayCaption | None:
        """The caption for the current time, None before the first."""
        place = bisect_right([caption.time for caption in self.captions], self.now())
        return self.captions[place - 1] if place else None

    def hold(self) -> None:
        """Pause or resume; after the end, start over."""
        if not self.held and self.now() >= self._last:
            self._go(self._first)
        else:
            self._go(self.now())
            self.held = not self.held
        self._moved.set()

    def faster(self, steps: int) -> None:
        """Change to the next higher (steps 1) or lower (-1) speed."""
        self._go(self.now())
        place = bisect_right(SPEEDS, self.speed) - 1 + steps
        if steps < 0 and SPEEDS[max(place + 1, 0)] < self.speed:
            place += 1
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._moved.set()

    def seek(self, steps: int) -> None:
        """Jump forward (1) or back (-1) by a caption, or by a share of the recording without captions. 0: to the beginning."""
        self._go(self._first if steps == 0 else self._place(steps))
        self._moved.set()

    def _place(self, steps: int) -> float:
        now = self.now()
        if not self.captions:
            return now + steps * STEP * (self._last - self._first)
        times = [caption.time for caption in self.captions]
        place = bisect_right(times, now) - 1 + steps
        return times[max(place, 0)] if place < len(times) else self._last

    def _go(self, place: float) -> None:
        self._at, self._since = min(max(place, self._first), self._last), self._clock()


def fix_timestamps(recording: Sequence[Event]) -> Sequence[Event]:
    """The events with times that never decrease, even if the clock was set back. A backward step becomes 0 s; if it undoes the
    largest forward step before it, that step is reduced to the difference."""
    steps, largest = [0.0], 0
    for place, (event, following) in enumerate(pairwise(recording), 1):
        step = following.time - event.time
        steps.append(max(step, 0.0))
        if step >= 0:
            largest = place if not largest or step > steps[largest] else largest
        elif largest and steps[largest] >= -step / 2:
            steps[largest] = max(steps[largest] + step, 0.0)
            largest = 0
    if all(event.time <= following.time for event, following in pairwise(recording)):
        return recording
    times = accumulate(steps, initial=recording[0].time)
    return [replace(event, time=time) for event, time in zip(recording, islice(times, 1, None), strict=True)]


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def place_in(recording: Sequence[Event], text: str) -> float:
    """Parse a start position, in Unix seconds: "120" a round, "0" the beginning, "50%" of its time, "2h", "90m", "30s".
    Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([%smhd]?)", text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is no place in a recording. Write a round (120), a share (50%) or a time (2h, 90m, 30s)."
        )
    number, unit = float(match[1]), match[2]
    recording = fix_timestamps(recording)
    first, last = recording[0].time, recording[-1].time
    if unit == "%":
        return first + (last - first) * min(number, 100.0) / 100
    if unit or not number:  # "0" is the beginning
        return first + number * _SECONDS.get(unit, 0)
    counts = TrainingCounts.of(recording)
    rounds = (
        event.time
        for event in recording
        if isinstance(event, RoundFinished) and not event.examples and counts.done_in(event.round).rounds >= number
    )
    return next(rounds, last)
