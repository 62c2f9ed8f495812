"""How fast a node is, and the readings of its machine, once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sapo_swarm.events import Vitals
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor.limits import Limits, decide
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.governor.sensors import Machine
from sapo_swarm.node.round.context import RoundWork

TICK_S = 1.0
_SMOOTH = 0.2
"""Weight of the newest round in the seconds of a round."""


@dataclass
class Pace:
    """tokens_per_s: generated, in the last round. round_s: smoothed seconds from one round's end to the next's."""

    tokens_per_s: float | None = None
    round_s: float | None = None
    _last: float = 0.0

    def paused(self) -> None:
        """A pause is no slow round."""
        self._last = 0.0

    def count(self, work: RoundWork) -> None:
        """A round is done."""
        tokens = sum(len(c.tokens) for group in work.completions or () for c in group)
        self.tokens_per_s = tokens / max(work.seconds.get("generate", 0.0), 1e-6)
        now = time.monotonic()
        if self._last:
            took = now - self._last
            self.round_s = took if self.round_s is None else (1 - _SMOOTH) * self.round_s + _SMOOTH * took
        self._last = now


async def tick(folder: Path, allowed: Callable[[], Limits], run_control: RunControl, pace: Pace, bus: Bus) -> None:
    """Until cancelled, once a second: read the machine, apply the limits, stream the vitals."""
    machine = Machine(folder)
    while True:
        limits = await asyncio.to_thread(allowed)
        now = await asyncio.to_thread(machine.readings, limits.pause_when_active)
        memory, cpu = await asyncio.to_thread(machine.usage)
        run_control.hold(decide(limits, now, run_control.requests.hold, time.monotonic()))
        bus.stream(
            Vitals(
                tokens_per_s=pace.tokens_per_s,
                rounds_per_hour=3600 / pace.round_s if pace.round_s else None,
                memory=memory,
                cpu_percent=cpu,
                watts=None,
                celsius=now.celsius,
            )
        )
        await asyncio.sleep(TICK_S)
