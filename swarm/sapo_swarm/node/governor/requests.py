"""What the person asked of the node, beside what the limits say: pure functions of requests and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from sapo_swarm.events import Event, StateChanged
from sapo_swarm.node.clock import local
from sapo_swarm.node.governor.holds import EFFORTS, Effort, Hold, Level

VERBS = ("pause", "resume", "finish", "snooze", "hold", "renew", "release", "run_anyway", "obey", "stop")
FOREVER = float("inf")
HOLDERS = 16
"""The newest that count: one that was killed never releases the node."""
STATES = 1000
"""Of the newest that are looked at for how the last session ended."""


class Requests(msgspec.Struct, frozen=True):
    """paused_until / anyway_until: seconds of the steady clock, 0 = not. finish: pause once the round is done. held: who needs
    the machine for a chat or a measurement, and until when, whatever else was asked for. holds: of the governor, the
    strongest first. done: why there is nothing left to do, as a sentence."""

    paused_until: float = 0.0
    anyway_until: float = 0.0
    finish: bool = False
    held: tuple[tuple[int, float], ...] = ()
    stop: bool = False
    holds: tuple[Hold, ...] = ()
    failure: str = ""
    done: str = ""


class BadCommand(ValueError):
    """No such verb or a duration that makes no sense."""


def command(requests: Requests, verb: str, for_s: float, now: float, holder: int = 0) -> Requests:
    """The requests after a command. for_s: 0 = without end. holder: who holds, renews or releases; what is renewed is a hold
    that nobody ended meanwhile. Raises BadCommand."""
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


def left_paused(events: Iterable[Event]) -> bool:
    """Whether the last session ended in a pause of the person's that had no end. events: of sessions before, in order."""
    states = [e for e in events if isinstance(e, StateChanged) and e.state in ("running", "finishing", "paused")]
    return bool(states) and (states[-1].state, states[-1].reason) == ("paused", "person")


def obstacle(requests: Requests, now: float, wall: float) -> tuple[str, str] | None:
    """(reason code, sentence) of what keeps the node from working now, or None. wall: the same moment in Unix time."""
    if requests.failure or requests.done:
        return ("failure", requests.failure) if requests.failure else ("done", requests.done)
    if requests.paused_until > now:
        if requests.paused_until == FOREVER:
            return "person", "Paused · space goes on"
        left = requests.paused_until - now
        until = moment(wall + left, wall)
        return "snooze", f"Paused until {until} · space goes on now"
    if is_held(requests, now):
        return "held", "Paused while a chat or a measurement needs the machine · space goes on"
    if (hold := strongest(requests, now)) is not None and hold.level == Level.PAUSE:
        return hold.code, hold.sentence
    return None


def is_held(requests: Requests, now: float) -> bool:
    """Somebody needs the machine, and said so lately."""
    return any(until > now for _, until in requests.held)


def strongest(requests: Requests, now: float) -> Hold | None:
    """The hold that counts: while the person runs anyway, only those that nothing overrides do."""
    anyway = requests.anyway_until > now
    return next((hold for hold in requests.holds if hold.floor or not anyway), None)


def effort(requests: Requests, now: float) -> Effort:
    """How much of the machine the node takes."""
    hold = strongest(requests, now)
    return EFFORTS[hold.level if hold else Level.RUN]


def aside(requests: Requests, now: float, wall: float) -> str:
    """What a working node has to say besides, as the end of a sentence: which rule slows it, until when it runs anyway."""
    hold = strongest(requests, now)
    slower = hold.aside if hold is not None and hold.level < Level.PAUSE else ""
    if requests.anyway_until <= now:
        return slower
    until = moment(wall + requests.anyway_until - now, wall)
    return f"{slower} · runs anyway until {until}, r ends that"


def moment(then: float, now: float) -> str:
    """A moment to come as people say it: 18:00 today, Tue 07:30 on another day of this week, Tue 24 Nov, 07:30 later."""
    at, today = local(then), local(now)
    if at[:3] == today[:3]:
        return time.strftime("%H:%M", at)
    return time.strftime("%a %H:%M" if then - now < 6 * 86400 else "%a %d %b, %H:%M", at)


def pending(requests: Requests, state: str, now: float = 0.0) -> str:
    """What was asked for and has not happened yet, as the end of a sentence; "" when nothing is."""
    if requests.stop and state not in ("stopped", "failed"):
        return " · stops as soon as it can"
    if state == "starting" and (requests.paused_until > now or is_held(requests, now)):
        return " · pauses once the model is open"
    return " · pauses after this round" if requests.finish and state != "paused" else ""


def round_done(requests: Requests) -> Requests:
    """After a round: a wish to finish becomes a pause."""
    return msgspec.structs.replace(requests, finish=False, paused_until=FOREVER) if requests.finish else requests
