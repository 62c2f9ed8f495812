"""Whether a node works now, and the one sentence that says so: requests, automatic holds, failures and waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import msgspec

from sapo_backends.base import CancelToken, OutOfMemory
from sapo_swarm.events import LogLine, State, StateChanged
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor import commands
from sapo_swarm.node.governor.commands import Requests
from sapo_swarm.node.governor.limits import Hold
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.storage.journal import JournalError

PATIENCE_S = 1.0
"""A waiting node looks again at least so often."""
FAILURES_TO_PAUSE = 5


class RunControl:
    """cancel: interrupts the engine when a wish asks for it."""

    def __init__(self, bus: Bus, activity: Activity, cancel: CancelToken) -> None:
        self.requests = Requests()
        self._bus, self._activity, self._cancel = bus, activity, cancel
        self._changed = asyncio.Event()
        self._failures = 0
        self._saying: set[asyncio.Task[None]] = set()

    def request(self, requests: Requests) -> None:
        """What is wanted from now on. Pauses and stops interrupt the engine at once."""
        self._become(requests, interrupt=True)

    def hold(self, hold: Hold | None) -> None:
        """What the automatic limits say now. They wait for an update to end: half of one is worth nothing, and where holds
        come faster than an update takes, the model would never learn."""
        if hold != self.requests.hold:
            requests = msgspec.structs.replace(self.requests, hold=hold)
            self._become(requests, interrupt=self._activity.phase != "update")

    def _become(self, requests: Requests, interrupt: bool) -> None:
        self.requests, now = requests, self._activity
        if requests.stop or commands.obstacle(requests, time.monotonic(), time.time()) is not None:
            if interrupt:
                self._cancel.cancel()
            if now.state in ("running", "finishing") and not requests.stop:
                now.state, now.sentence = "pausing", "Pausing" if interrupt else "Pausing once this update is done"
        elif requests.finish and now.state == "running":
            self._soon("finishing", f"Finishing round {now.round + 1}, then pausing · space goes on")
        elif not requests.finish and now.state == "finishing":
            self._soon("running", f"Working on round {now.round + 1}")
        self.wake()

    def _soon(self, state: State, sentence: str) -> None:
        """Say it without waiting for the journal: commands come from places that cannot wait."""
        self._activity.state = state
        task = asyncio.get_running_loop().create_task(self.say(state, sentence))
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    def wake(self) -> None:
        """Something changed that a waiting node should look at."""
        self._changed.set()

    async def may_work(self, round_number: int) -> bool:
        """True at once when nothing is in the way; else wait for the next change (once "paused" was said) and return False."""
        self._changed.clear()  # before looking: what changes while "paused" is being said counts
        obstacle = commands.obstacle(self.requests, time.monotonic(), time.time())
        if obstacle is None:
            self._cancel.reset()
            if self._activity.state != ("finishing" if self.requests.finish else "running"):
                await self._working(round_number)
            return True
        reason, sentence = obstacle
        if (self._activity.state, self._activity.reason) != ("paused", reason):
            await self.say("paused", sentence, reason)
            return False
        self._activity.sentence = sentence
        await self._wait(PATIENCE_S)
        return False

    async def _working(self, round_number: int) -> None:
        if self.requests.finish:
            await self.say("finishing", f"Finishing round {round_number + 1}, then pausing · space goes on")
        else:
            await self.say("running", f"Working on round {round_number + 1}")

    async def settled(self) -> None:
        """Returns when everything that was to be said is said."""
        await asyncio.gather(*self._saying)

    def succeeded(self) -> None:
        """A round is done: failures in a row begin anew, and a wish to finish becomes a pause."""
        self._failures = 0
        self.requests = commands.round_done(self.requests)

    async def failed(self, error: Exception) -> None:
        """Back off 2^n s; out of memory, a full disk or the fifth failure in a row pause with the reason."""
        self._failures += 1
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(JournalError):
            await self.log("error", text)
        final = isinstance(error, (OutOfMemory, OSError, JournalError)) or self._failures >= FAILURES_TO_PAUSE
        if final:
            self._failures = 0
            self.request(msgspec.structs.replace(self.requests, failure=f"Paused: {error} · space tries again"))
            return
        wait = random.uniform(0, 2**self._failures)
        self._activity.sentence = f"{text} · tries again in {commands.duration(wait)}"
        self._changed.clear()
        await self._wait(wait)

    async def say(self, state: State, sentence: str, reason: str = "") -> None:
        """Be in this state from now on, and tell of it."""
        now = self._activity
        now.state, now.sentence, now.reason, now.since = state, sentence, reason, time.time()
        now.phase = now.phase if state in ("running", "finishing") else None
        with contextlib.suppress(JournalError):  # a full disk must not keep the node from saying so
            await self._bus.publish(StateChanged(state=state, sentence=sentence, reason=reason))

    async def log(self, level: str, text: str) -> None:
        """Store a line of the log. Raises JournalError."""
        await self._bus.publish(LogLine(level="error" if level == "error" else "info", text=text))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
