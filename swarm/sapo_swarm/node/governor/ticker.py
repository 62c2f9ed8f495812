"""Once a second: what the machine says, the limits that follow from it, and how fast the node is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sapo_swarm.events import Event, RoundFinished, Vitals
from sapo_swarm.node.clock import steady
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor.awake import Awake, wanted
from sapo_swarm.node.governor.holds import State, advance
from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.governor.sensors.machine import Machine

LOG = logging.getLogger(__name__)
TICK_S = 1.0
_SMOOTH = 0.2
"""Weight of the newest round in the seconds of a round."""


@dataclass
class Pace:
    """tokens_per_s: sampled, in the last round and its stage. round_s: smoothed seconds from one round's end to the next's."""

    tokens_per_s: float | None = None
    round_s: float | None = None
    _last: float = 0.0

    def paused(self) -> None:
        """A pause is no slow round."""
        self._last = 0.0

    def count(self, events: Sequence[Event]) -> None:
        """A round is done, with these events."""
        (done,) = (event for event in events if isinstance(event, RoundFinished))
        if not done.examples:
            self.tokens_per_s = done.tokens_generated / max(done.seconds.get("generate", 0.0), 1e-6)
        now = time.monotonic()
        if self._last:
            took = now - self._last
            self.round_s = took if self.round_s is None else (1 - _SMOOTH) * self.round_s + _SMOOTH * took
        self._last = now


async def tick(
    machine: Machine,
    allowed: Callable[[], Limits],
    run_control: RunControl,
    pace: Pace,
    bus: Bus,
) -> None:
    """Until cancelled, once a second: read the machine, apply the limits, stream the vitals. What cannot be read now is logged,
    once, and the limits hold as they did."""
    state, awake, failed = State(), Awake(), ""
    thread = ThreadPoolExecutor(1, "awake")  # Windows ties the wish to the thread that has it

    def want(wish: bool) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(thread, awake.want, wish)

    try:
        while True:
            try:
                state = await _beat(state, want, machine, allowed, run_control, pace, bus)
                failed = ""
            except Exception as error:  # out of files, a sensor's driver: the limits are heeded all the same
                if failed != (failed := f"{type(error).__name__}: {error}"):
                    LOG.exception("The machine cannot be read now")
            await asyncio.sleep(TICK_S)
    finally:
        await want(False)
        thread.shutdown(wait=False)


async def _beat(
    state: State,
    want: Callable[[bool], Awaitable[None]],
    machine: Machine,
    allowed: Callable[[], Limits],
    run_control: RunControl,
    pace: Pace,
    bus: Bus,
) -> State:
    limits = await asyncio.to_thread(allowed)
    idle = limits.pause_when_active or limits.slow_when_active
    now = await asyncio.to_thread(machine.readings, idle, limits.pause_on_metered)
    used, cpu = await asyncio.to_thread(machine.usage)
    state = advance(state, limits, now, steady())
    run_control.hold(state.holds)
    run_control.ease()
    await want(wanted(limits, now, run_control.working))
    working = run_control.working
    bus.stream(
        Vitals(
            tokens_per_s=pace.tokens_per_s if working else None,
            rounds_per_hour=3600 / pace.round_s if working and pace.round_s else None,
            memory=used,
            cpu_percent=cpu,
            celsius=now.celsius,
        )
    )
    return state
