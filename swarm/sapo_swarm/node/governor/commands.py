"""What the person asked of the node, as a pure state machine over commands, automatic holds and the clock."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from sapo_swarm.node.governor.limits import Hold

Verb = Literal["pause", "resume", "finish", "snooze", "run_anyway", "stop"]
VERBS: tuple[Verb, ...] = ("pause", "resume", "finish", "snooze", "run_anyway", "stop")
FOREVER = float("inf")


class Wishes(msgspec.Struct, frozen=True):
    """paused_until / anyway_until: monotonic seconds, 0 = not. finish: pause once the round is done."""

    paused_until: float = 0.0
    anyway_until: float = 0.0
    finish: bool = False
    stop: bool = False
    hold: Hold | None = None
    failure: str = ""


class BadCommand(ValueError):
    """No such verb or a duration that makes no sense."""


def command(wishes: Wishes, verb: str, for_s: float, now: float) -> Wishes:
    """The wishes after a command. for_s: 0 = without end. Raises BadCommand."""
    if for_s < 0 or for_s > 30 * 86400:
        raise BadCommand("for_s must be between 0 (no end) and 2592000 seconds (30 days).")
    until = now + for_s if for_s else FOREVER
    replace = msgspec.structs.replace
    if verb == "pause" or verb == "snooze":
        return replace(wishes, paused_until=until, finish=False)
    if verb == "resume":
        return replace(wishes, paused_until=0.0, finish=False, failure="")
    if verb == "finish":
        return replace(wishes, finish=True)
    if verb == "run_anyway":
        return replace(wishes, anyway_until=now + (for_s or 3600.0), paused_until=0.0, failure="")
    if verb == "stop":
        return replace(wishes, stop=True)
    raise BadCommand(f"There is no command {verb!r}. Known: {', '.join(VERBS)}.")


def obstacle(wishes: Wishes, now: float, wall: float) -> tuple[str, str] | None:
    """(reason code, sentence) of what keeps the node from working now, or None. wall: the same moment in Unix time."""
    if wishes.failure:
        return "failure", wishes.failure
    if wishes.paused_until > now:
        if wishes.paused_until == FOREVER:
            return "person", "Paused · space goes on"
        left = wishes.paused_until - now
        until = moment(wall + left, wall)
        return "snooze", f"Paused until {until} · space goes on now"
    if wishes.hold is not None and wishes.anyway_until <= now:
        return wishes.hold.code, wishes.hold.sentence
    return None


def moment(then: float, now: float) -> str:
    """A moment to come as people say it: 18:00 today, Tue 07:30 on another day of this week, Tue 24 Nov, 07:30 later."""
    at, today = time.localtime(then), time.localtime(now)
    if at[:3] == today[:3]:
        return time.strftime("%H:%M", at)
    return time.strftime("%a %H:%M" if then - now < 6 * 86400 else "%a %d %b, %H:%M", at)


def pending(wishes: Wishes, state: str) -> str:
    """What was asked for and has not happened yet, as the end of a sentence; "" when nothing is."""
    if wishes.stop and state not in ("stopped", "failed"):
        return " · stops as soon as it can"
    if state == "starting" and wishes.paused_until:
        return " · pauses once the model is open"
    return " · pauses after this round" if wishes.finish and state != "paused" else ""


def round_done(wishes: Wishes) -> Wishes:
    """After a round: a wish to finish becomes a pause."""
    return msgspec.structs.replace(wishes, finish=False, paused_until=FOREVER) if wishes.finish else wishes


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "1 h 20 min"."""
    whole = max(1, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
