"""Whether a node works now, and the one sentence that says so: requests, automatic holds, failures and waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from sapo_backends.base import CancelToken
from sapo_backends.errors import OutOfMemory
from sapo_swarm.events import Event, LogLine, StateChanged
from sapo_swarm.events import State as NodeState
from sapo_swarm.node.clock import format_duration, local_time, steady_seconds
from sapo_swarm.node.governor.rules import (
    EFFORTS,
    FULL,
    ComputeBudget,
    GovernorHold,
    ThrottleLevel,
)
from sapo_swarm.node.journal import EventBus, JournalError
from sapo_swarm.node.round_phases import NodeActivity
from sapo_swarm.node.round_warnings import CROWDED

# The person's requests to the node, besides the limits: pure functions of requests and the clock.

VERBS = ("pause", "resume", "finish", "snooze", "hold", "renew", "release", "run_anyway", "obey", "stop")
FOREVER = float("inf")
HOLDERS = 16
"""The newest holders that count: one that was killed never releases the node."""
STATES = 1000
"""The newest states that are searched for how the last session ended."""


class RunRequests(msgspec.Struct, frozen=True):
    """paused_until / anyway_until: seconds of the steady clock, 0 = not. finish: pause once the round is done. held: who
    needs the machine for a chat or a measurement, and until when, whatever else was asked for. holds: of the governor, the
    strongest first. done: why there is nothing left to do, as a sentence."""

    paused_until: float = 0.0
    anyway_until: float = 0.0
    finish: bool = False
    held: tuple[tuple[int, float], ...] = ()
    stop: bool = False
    holds: tuple[GovernorHold, ...] = ()
    failure: str = ""
    done: str = ""


class BadCommand(ValueError):
    """There is no such verb, or the duration makes no sense."""


def apply_command(requests: RunRequests, verb: str, for_s: float, now: float, holder: int = 0) -> RunRequests:
    """The requests after a command. for_s: 0 = without end. holder: who holds, renews or releases; a renewal counts only if
    the hold was not ended meanwhile. Raises BadCommand."""
    if for_s < 0 or for_s > 30 * 86400:
        raise BadCommand("for_s must be between 0 (no end) and 2592000 seconds (30 days).")
    until = now + for_s if for_s else FOREVER
    pause = {"paused_until": until, "finish": False}
    go_on = {"paused_until": 0.0, "held": (), "failure": "", "done": ""}
    others = tuple(held for held in requests.held if held[0] != holder)
    hold = {"held": (*others, (holder, until))[-HOLDERS:]}
    changes: dict[str, dict[str, Any]] = {
        "pause": pause,
        "snooze": pause,
        "resume": {**go_on, "finish": False},
        "finish": {"finish": True},
        "hold": hold,
        "renew": {} if others == requests.held else hold,
        "release": {"held": others},
        "run_anyway": {**go_on, "anyway_until": now + (for_s or 3600.0)},
        "obey": {"anyway_until": 0.0},
        "stop": {"stop": True},
    }
    if verb not in changes:
        raise BadCommand(f"There is no command {verb!r}. Known: {', '.join(VERBS)}.")
    return msgspec.structs.replace(requests, **changes[verb])


def last_pause(events: Iterable[Event]) -> StateChanged | None:
    """The pause without an end in which the last session ended: the person's, or because nothing was left to do. A session that
    ended because everything planned was done is such a pause too. events: of the sessions before, in order."""
    states = [e for e in events if isinstance(e, StateChanged)]
    if states and (states[-1].state, states[-1].reason) == ("stopped", "done"):
        after = states[-1].sentence.removeprefix("Stopped ").rstrip(".")
        return msgspec.structs.replace(states[-1], state="paused", sentence=f"Finished {after} · space goes on")
    states = [e for e in states if e.state in ("running", "finishing", "paused")]
    ended = bool(states) and states[-1].state == "paused" and states[-1].reason in ("person", "done")
    return states[-1] if ended else None


def find_obstacle(requests: RunRequests, now: float, wall: float) -> tuple[str, str] | None:
    """(reason code, sentence) for what keeps the node from working now, or None. wall: the same moment in Unix time."""
    if requests.failure or requests.done:
        return ("failure", requests.failure) if requests.failure else ("done", requests.done)
    if requests.paused_until > now:
        if requests.paused_until == FOREVER:
            return "person", "Paused · space goes on"
        left = requests.paused_until - now
        until = format_moment(wall + left, wall)
        return "snooze", f"Paused until {until} · space goes on now"
    if is_held(requests, now):
        return "held", "Paused while a chat or a measurement needs the machine · space goes on"
    if (hold := strongest_hold(requests, now)) is not None and hold.level == ThrottleLevel.PAUSE:
        return hold.code, hold.sentence
    return None


def is_held(requests: RunRequests, now: float) -> bool:
    """Somebody needs the machine, and said so recently."""
    return any(until > now for _, until in requests.held)


def strongest_hold(requests: RunRequests, now: float) -> GovernorHold | None:
    """The hold that counts: while the person runs anyway, only those that nothing overrides count."""
    anyway = requests.anyway_until > now
    return next((hold for hold in requests.holds if hold.floor or not anyway), None)


def compute_budget(requests: RunRequests, now: float) -> ComputeBudget:
    """How much of the machine the node may use."""
    hold = strongest_hold(requests, now)
    return EFFORTS[hold.level if hold else ThrottleLevel.RUN]


def running_note(requests: RunRequests, now: float, wall: float) -> str:
    """What a working node adds to its sentence: which rule slows it, until when it runs anyway."""
    hold = strongest_hold(requests, now)
    slower = hold.aside if hold is not None and hold.level < ThrottleLevel.PAUSE else ""
    if requests.anyway_until <= now:
        return slower
    until = format_moment(wall + requests.anyway_until - now, wall)
    return f"{slower} · runs anyway until {until}, r ends that"


def format_moment(then: float, now: float) -> str:
    """A future moment as people say it: 18:00 today, Tue 07:30 on another day of this week, Tue 24 Nov, 07:30 later."""
    at, today = local_time(then), local_time(now)
    if at[:3] == today[:3]:
        return time.strftime("%H:%M", at)
    return time.strftime("%a %H:%M" if then - now < 6 * 86400 else "%a %d %b, %H:%M", at)


def pending_note(requests: RunRequests, state: str, now: float = 0.0) -> str:
    """Pending requests, as the end of a sentence; "" if there are none."""
    if requests.stop and state not in ("stopped", "failed"):
        return " · stops as soon as it can"
    if state == "starting" and (requests.paused_until > now or is_held(requests, now)):
        return " · pauses once the model is open"
    return " · pauses after this round" if requests.finish and state != "paused" else ""


def round_done(requests: RunRequests) -> RunRequests:
    """After a round: a request to finish becomes a pause."""
    return msgspec.structs.replace(requests, finish=False, paused_until=FOREVER) if requests.finish else requests


PATIENCE_S = 1.0
"""A waiting node checks at least this often."""
FAILURES_TO_PAUSE = 5
HALF = 0.5
"""Share of threads and batches after memory ran out."""
ENDED = "Paused: the system ended this model's sessions {} times in a row for want of memory · space tries again"
CROWDED_S = 10
Take = Callable[[float, float], bool]


class RunControl:
    """cancel: interrupts the engine when a wish asks for it. take: has the engine take a share and a duty (Effort), True when
    threads or micro-batches changed. deaths: sessions in a row that the system ended for want of memory.
    pause: it begins in this one, until the person goes on.

    doing: the current work if it is no round of practice; before: rounds before the first round of practice; notice: appended
    to every sentence of a working node.
    """

    def __init__(
        self,
        bus: EventBus,
        activity: NodeActivity,
        cancel: CancelToken,
        take: Take,
        deaths: int = 0,
        pause: StateChanged | None = None,
    ) -> None:
        self.requests = RunRequests(
            FOREVER if pause and pause.reason == "person" else 0.0,
            failure=ENDED.format(deaths) if deaths > 1 else "",
            done=pause.sentence if pause and pause.reason == "done" else "",
        )
        self._take, self._share, self._refused = take, HALF if deaths else 1.0, bool(deaths)
        self._bus, self._activity, self._cancel = bus, activity, cancel
        self.doing, self.before, self.notice = "", 0, ""
        self._crowded, self._beside = 0, ""
        self._changed = asyncio.Event()
        self._failures = 0
        self._saying: set[asyncio.Task[None]] = set()
        self._told = (FULL, False)

    def command(self, verb: str, for_s: float, holder: int = 0) -> None:
        """A request from the person. for_s, holder: see apply_command. Raises BadCommand."""
        self.request(apply_command(self.requests, verb, for_s, steady_seconds(), holder))

    def request(self, requests: RunRequests) -> None:
        """Set the requests that apply from now on. Pauses and stops interrupt the engine at once."""
        self._become(requests, interrupt=True)

    def hold(self, holds: Sequence[GovernorHold]) -> None:
        """The current holds of the automatic limits. They wait for an update to end: half an update is worth nothing, and if
        holds came faster than an update takes, the model would never learn."""
        if tuple(holds) != self.requests.holds:
            requests = msgspec.structs.replace(self.requests, holds=tuple(holds))
            self._become(requests, interrupt=self._activity.phase != "update")

    def effort(self) -> ComputeBudget:
        """How much of the machine the node may use now. A change while the node works is published."""
        budget, now = compute_budget(self.requests, steady_seconds()), self._activity
        effort_now = msgspec.structs.replace(budget, share=budget.share * self._share)
        if self._told != (told := (effort_now, self.requests.anyway_until > steady_seconds())):
            self._told = told
            if now.state in ("running", "finishing"):
                self._soon(now.state, self._working_on(now.round))
        return effort_now

    def besides(self) -> str:
        """Pending requests and the rule that slows the work: the end of the status sentence."""
        slower = running_note(self.requests, steady_seconds(), time.time()) if self.working else ""
        less = " · half batches, because memory ran out" if self.working and self._share < 1.0 else ""
        return self._pending() + slower + less + (self.notice + self._beside if self.working else "")

    def _pending(self) -> str:
        return pending_note(self.requests, self._activity.state, steady_seconds())

    @property
    def working(self) -> bool:
        """Whether a round is being worked on."""
        return self._activity.state in ("running", "finishing")

    def ease(self) -> None:
        """Apply the budget. Rollouts begun with more threads are continued with fewer; what was sampled is kept. An update
        runs to its end."""
        now = self.effort()
        if self._take(now.share, now.duty) and self._activity.phase == "generate":
            self._cancel.cancel()

    def _become(self, requests: RunRequests, interrupt: bool) -> None:
        now, before = self._activity, self._pending()
        self.requests = requests
        if now.state == "starting" and self._pending() != before:
            self._soon("starting", now.sentence)
        if requests.stop or find_obstacle(requests, steady_seconds(), time.time()) is not None:
            if interrupt:
                self._cancel.cancel()
            if now.state in ("running", "finishing") and not requests.stop:
                now.state, now.sentence = "pausing", "Pausing" if interrupt else "Pausing once this update is done"
        elif requests.finish and now.state == "running":
            self._soon("finishing", self._finishing(now.round))
        elif not requests.finish and now.state == "finishing":
            self._soon("running", self._working_on(now.round))
        self.wake()

    def _soon(self, state: NodeState, sentence: str) -> None:
        """Publish the state without waiting for the journal: commands come from places that cannot wait. Dropped if the state
        has changed by then."""
        self._activity.state = state

        async def say() -> None:
            if self._activity.state == state:
                await self.say(state, sentence)

        task = asyncio.get_running_loop().create_task(say())
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    def wake(self) -> None:
        """Wake a waiting node: something changed."""
        self._changed.set()

    async def may_work(self, round_number: int) -> bool:
        """True at once if nothing is in the way; else publish the obstacle, wait for the next change and return False."""
        self._changed.clear()  # first: a change while "paused" is being published counts
        obstacle = find_obstacle(self.requests, steady_seconds(), time.time())
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
            await self.say("finishing", self._finishing(round_number))
        else:
            await self.say("running", self._working_on(round_number))

    def _working_on(self, round_number: int) -> str:
        return self.doing or f"Working on round {round_number - self.before + 1}"

    def _finishing(self, round_number: int) -> str:
        work = self.doing or f"round {round_number - self.before + 1}"
        return f"Finishing {work[0].lower()}{work[1:]}, then pausing · space goes on"

    def tell(self, doing: str, before: int, notice: str) -> None:
        """Arguments: see the class; a working node publishes any change."""
        if (self.doing, self.before, self.notice) == (doing, before, notice):
            return
        changed, now = self.notice != notice or self.doing != doing, self._activity
        self.doing, self.before, self.notice = doing, before, notice
        if changed and now.state == "running":
            self._soon("running", self._working_on(now.round))

    def observe_others(self, taken: bool) -> None:
        """Called once a second: whether other programs have most of the processor. After CROWDED_S the status says so, which
        explains why a step takes minutes; after as long without them it does not any more."""
        self._crowded = max(0, min(CROWDED_S, self._crowded + (1 if taken and self.working else -1)))
        beside = {CROWDED_S: CROWDED, 0: ""}.get(self._crowded, self._beside)
        if self._beside != beside:
            self._beside = beside
            if self._activity.state == "running":
                self._soon("running", self._working_on(self._activity.round))

    async def settled(self) -> None:
        """Returns once everything pending is published."""
        await asyncio.gather(*self._saying)

    def succeeded(self) -> None:
        """A round is done: reset the count of consecutive failures; a request to finish becomes a pause."""
        self._failures, self._refused = 0, False
        self.requests = round_done(self.requests)

    def nothing_left(self, sentence: str) -> None:
        """The run has nothing left to learn: it pauses, and the person may resume it."""
        self.request(msgspec.structs.replace(self.requests, done=sentence))

    def weights_replaced(self) -> None:
        """What had nothing left to learn may have now. It stays paused, by the person, who asked for the other weights."""
        if self.requests.done:
            self.request(msgspec.structs.replace(self.requests, done="", paused_until=FOREVER))

    async def failed(self, error: Exception) -> None:
        """Back off 2^n s; a full disk or the fifth consecutive failure pauses with the reason. Out of memory: try again with
        half of the threads and batches, for the rest of the session, then pause."""
        self._failures += 1
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(JournalError):
            await self.log("error", text)
        scarce, again = isinstance(error, OutOfMemory | MemoryError), self._refused
        if scarce and not again:
            self._refused, self._share, self._failures = True, HALF, 0
            self.ease()
            with contextlib.suppress(JournalError):
                await self.log("info", "Memory ran out: the round is tried once more with half of threads and batches.")
        final = (scarce and again) or isinstance(error, (OSError, JournalError)) or self._failures >= FAILURES_TO_PAUSE
        if final:
            self._failures = 0
            self.request(msgspec.structs.replace(self.requests, failure=f"Paused: {error} · space tries again"))
            return
        wait = random.uniform(0, 2**self._failures)
        self._activity.sentence = f"{text} · tries again in {format_duration(wait)}"
        self._changed.clear()
        await self._wait(wait)

    async def say(self, state: NodeState, sentence: str, reason: str = "") -> None:
        """Enter this state and publish it."""
        now = self._activity
        now.state, now.sentence, now.reason, now.since = state, sentence, reason, time.time()
        now.phase = now.phase if state in ("starting", "running", "finishing") else None
        clock, wall, until = steady_seconds(), time.time(), 0.0
        if state == "starting" and (then := self._pending()):
            obstacle = None if self.requests.stop else find_obstacle(self.requests, clock, wall)
            sentence, reason = sentence + then, obstacle[0] if obstacle else ""
        if state in ("running", "finishing"):
            sentence += running_note(self.requests, clock, wall) + self.notice + self._beside
            until = wall + self.requests.anyway_until - clock if self.requests.anyway_until > clock else 0.0
        changed = StateChanged(state=state, sentence=sentence, reason=reason, anyway_until=until)
        try:
            await self._bus.publish(changed)
        except JournalError:  # a full disk must not keep the node from reporting it
            self._bus.stream(changed)

    async def log(self, level: str, text: str) -> None:
        """Store a line of the log. Raises JournalError."""
        await self._bus.publish(LogLine(level="error" if level == "error" else "info", text=text))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
