"""When a node holds back, and how far: pure rules over the limits, readings of the machine and the clock.

Every rule has two thresholds (where it begins, and a margin before it ends) and a dwell, so that a value near a line does
not make training flap. Steps: EASE is half the threads and half the micro-batch, SLOW rests as long as it works besides,
PAUSE stops and keeps what is finished. A rule may rise from step to step at once; it falls no sooner than a dwell after its
last change, and having fallen rises no sooner than a dwell after that. Only a pause for memory (free,
or waited for), disk or heat waits for nothing. A change of the limits counts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from sapo_backends.errors import size_text
from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.node.governor.schedule import opens, parse_schedule, spoken
from sapo_swarm.node.governor.sensors.macos import NAMES
from sapo_swarm.node.governor.sensors.readings import Readings


class Level(IntEnum):
    """How far a rule holds the node back."""

    RUN = 0
    EASE = 1
    SLOW = 2
    PAUSE = 3


class Effort(msgspec.Struct, frozen=True):
    """share: of threads and micro-batch. duty: of the time that is worked."""

    share: float = 1.0
    duty: float = 1.0


FULL = Effort()
EFFORTS = {Level.RUN: FULL, Level.EASE: Effort(0.5), Level.SLOW: Effort(0.5, 0.5), Level.PAUSE: Effort(0.5, 0.5)}
OVERRIDE = "r runs anyway for 1 h"


class Hold(msgspec.Struct, frozen=True):
    """One rule that holds. reason: what is so. lifts: when it lets go ("once plugged in"). since: seconds of the steady clock.

    floor: nothing overrides it.
    """

    code: str
    reason: str
    lifts: str
    since: float
    level: Level = Level.PAUSE
    floor: bool = False

    @property
    def sentence(self) -> str:
        """Of a pause: why, and every way out."""
        return f"Paused: {self.reason} · goes on {self.lifts}{'' if self.floor else f' · {OVERRIDE}'}"

    @property
    def aside(self) -> str:
        """Of a lesser step: the end of another sentence."""
        return f" · slower: {self.reason}, full speed {self.lifts}"


class Wish(msgspec.Struct, frozen=True):
    """What a rule wants now."""

    level: Level
    reason: str = ""
    lifts: str = ""


FREE = Wish(Level.RUN)
Ask = Callable[[Limits, Readings, Level], Wish]
"""(limits, readings, the rule's level now) -> what it wants. The level decides which of the two thresholds counts."""


class Rule(msgspec.Struct, frozen=True):
    """dwell: seconds. floor: see Hold. urgent: a pause waits for no dwell. escalates: EASE becomes SLOW after a dwell."""

    code: str
    ask: Ask
    dwell: float = 20.0
    floor: bool = False
    urgent: bool = False
    escalates: bool = False


class RuleState(msgspec.Struct, frozen=True):
    """A rule at one moment. since: of its last change. fell: that change was downwards."""

    wish: Wish = FREE
    since: float = float("-inf")
    fell: bool = False


class State(msgspec.Struct, frozen=True):
    """All rules at one moment, in the order of RULES; with the limits under which they were asked."""

    limits: Limits | None = None
    rules: tuple[RuleState, ...] = ()

    @property
    def holds(self) -> tuple[Hold, ...]:
        """The rules that hold, the strongest first."""
        found = [
            Hold(rule.code, state.wish.reason, state.wish.lifts, state.since, state.wish.level, rule.floor)
            for rule, state in zip(RULES, self.rules, strict=False)
            if state.wish.level
        ]
        return tuple(sorted(found, key=lambda hold: -hold.level))


def advance(state: State, limits: Limits, now: Readings, clock: float) -> State:
    """The rules a moment later. clock: seconds of the steady clock, never less than before."""
    known = state.rules if state.limits == limits else (RuleState(),) * len(RULES)
    moved = (_move(rule, old, limits, now, clock) for rule, old in zip(RULES, known, strict=True))
    return State(limits, tuple(moved))


def _move(rule: Rule, old: RuleState, limits: Limits, now: Readings, clock: float) -> RuleState:
    level, waited = old.wish.level, clock - old.since >= rule.dwell
    wish = rule.ask(limits, now, level)
    if rule.escalates and wish.level == Level.EASE and (level == Level.SLOW or (level == Level.EASE and waited)):
        wish = msgspec.structs.replace(wish, level=Level.SLOW)
    if wish.level == level:
        return msgspec.structs.replace(old, wish=wish)
    if wish.level > level:
        urgent = rule.urgent and wish.level == Level.PAUSE
        return RuleState(wish, clock) if waited or not old.fell or urgent else old
    return RuleState(wish, clock, fell=True) if waited else old


_GB = 1e9
COOLER = 8.0
"""Degrees below a line that end a hold for heat."""
SLACK = 1.25
"""Times the free memory or disk that ends a hold for it."""
CHARGED = 5.0
QUIETER = 10.0
CALMER, QUIET_FAN = 0.5, 0.8
"""Times the line: where a hold for waiting, and one for a fan, end."""
TOUCH_S = 30.0
"""Keyboard or mouse touched within so many seconds: somebody is there."""


def _memory(limits: Limits, now: Readings, level: Level) -> Wish:
    if now.free_memory is None or not limits.min_free_memory:
        return FREE
    free, least = now.free_memory, limits.min_free_memory * _GB
    reason = f"only {size_text(free)} of memory free"
    if free < least * (SLACK if level == Level.PAUSE else 1.0):
        return Wish(Level.PAUSE, reason, f"at {size_text(least * SLACK)}: close something")
    if free < 2 * least * (SLACK if level else 1.0):
        return Wish(Level.EASE, reason, f"at {size_text(2 * least * SLACK)}")
    return FREE


def _disk(limits: Limits, now: Readings, level: Level) -> Wish:
    least = limits.min_free_disk * _GB
    if now.free_disk is None or now.free_disk >= least * (SLACK if level else 1.0):
        return FREE
    return Wish(
        Level.PAUSE, f"only {size_text(now.free_disk)} of disk free", f"at {size_text(least * SLACK)}: make room"
    )


def _battery(limits: Limits, now: Readings, _level: Level) -> Wish:
    if not now.on_battery or not (limits.pause_on_battery or limits.slow_on_battery):
        return FREE
    return Wish(Level.PAUSE if limits.pause_on_battery else Level.SLOW, "on battery", "once plugged in")


def _charge(limits: Limits, now: Readings, level: Level) -> Wish:
    if not now.on_battery or now.charge is None or not limits.min_charge:
        return FREE
    line = limits.min_charge + (CHARGED if level else 0.0)
    if now.charge >= line:
        return FREE
    return Wish(Level.PAUSE, f"the battery is at {now.charge:.0f} %", "once plugged in")


def _heat(limits: Limits, now: Readings, level: Level) -> Wish:
    if now.celsius is None:
        return FREE
    reason, hard, soft = f"{now.celsius:.0f} °C", limits.max_celsius, limits.slow_celsius
    if hard and now.celsius > (_below(hard, COOLER) if level == Level.PAUSE else hard):
        return Wish(Level.PAUSE, reason, f"below {_below(hard, COOLER):.0f} °C")
    if soft and now.celsius > (_below(soft, COOLER) if level else soft):
        return Wish(Level.EASE, reason, f"below {_below(soft, COOLER):.0f} °C")
    return FREE


def _pressure(limits: Limits, now: Readings, level: Level) -> Wish:
    """Slower from the line on, a pause from the level above it; each lets go two levels below where it begins, or at nominal."""
    line, found = limits.slow_thermal_pressure, now.thermal_pressure
    if found is None or not line:
        return FREE
    reason = f"macOS tells of {NAMES[found]} thermal pressure"
    if found >= (max(line, 1) if level == Level.PAUSE else line + 1):
        return Wish(Level.PAUSE, reason, f"once it is {NAMES[line - 1]}")
    if found >= (max(line - 1, 1) if level else line):
        return Wish(Level.EASE, reason, f"once it is {NAMES[max(line - 2, 0)]}")
    return FREE


def _below(line: float, margin: float) -> float:
    """Where a hold that began above the line ends: a value that can be reached."""
    return max(line - margin, line / 2)


def _schedule(limits: Limits, now: Readings, _level: Level) -> Wish:
    if now.week_minute is None or not (wait := opens(parse_schedule(limits.schedule), now.week_minute)):
        return FREE
    opening = spoken(now.week_minute + wait)
    return Wish(Level.PAUSE, f"out of hours until {opening}", f"at {opening}")


def _person(limits: Limits, now: Readings, level: Level) -> Wish:
    """Holds at a touch, lets go when nothing was touched for away_minutes."""
    if now.idle_s is None or not (limits.pause_when_active or limits.slow_when_active):
        return FREE
    if now.idle_s >= (60 * limits.away_minutes if level else TOUCH_S):
        return FREE
    step = Level.PAUSE if limits.pause_when_active else Level.EASE
    return Wish(step, "you are using the computer", f"{limits.away_minutes:g} min after your last touch")


def _wait(limits: Limits, now: Readings, level: Level) -> Wish:
    """Where programs wait for memory, the machine is about to stand still, however much of it looks free."""
    line = limits.slow_memory_wait
    if now.memory_wait is None or not line or now.memory_wait <= line * (CALMER if level else 1.0):
        return FREE
    hard = min(4 * line, 50.0)
    reason = f"programs wait for memory {now.memory_wait:.0f} % of the time"
    if now.memory_wait > hard * (CALMER if level == Level.PAUSE else 1.0):
        return Wish(Level.PAUSE, reason, f"below {max(hard, line) * CALMER:.2g} %: close something")
    return Wish(Level.SLOW, reason, f"below {line * CALMER:.2g} %")


def _fan(limits: Limits, now: Readings, level: Level) -> Wish:
    line = limits.slow_fan_rpm
    quiet = line * QUIET_FAN
    if now.fan_rpm is None or not line or now.fan_rpm <= (quiet if level else line):
        return FREE
    return Wish(Level.SLOW, f"the fan turns at {now.fan_rpm:.0f} rpm", f"below {quiet:.0f} rpm")


def _lid(limits: Limits, now: Readings, _level: Level) -> Wish:
    held = limits.pause_lid_closed and now.lid_closed
    return Wish(Level.PAUSE, "the lid is closed", "once it is open") if held else FREE


def _metered(limits: Limits, now: Readings, _level: Level) -> Wish:
    held = limits.pause_on_metered and now.metered
    return Wish(Level.PAUSE, "the network is metered", "once it is another network") if held else FREE


def _load(limits: Limits, now: Readings, level: Level) -> Wish:
    line = limits.slow_other_load
    quiet = _below(line, QUIETER)
    if now.other_load is None or not line or now.other_load <= (quiet if level else line):
        return FREE
    return Wish(Level.SLOW, f"other programs use {now.other_load:.0f} % of the CPU", f"below {quiet:.0f} %")


RULES = (
    Rule("memory", _memory, 30.0, floor=True, urgent=True),
    Rule("disk", _disk, 30.0, floor=True, urgent=True),
    Rule("memory_wait", _wait, 30.0, urgent=True),
    Rule("charge", _charge),
    Rule("battery", _battery),
    Rule("heat", _heat, 30.0, urgent=True, escalates=True),
    Rule("thermal_pressure", _pressure, 30.0, urgent=True, escalates=True),
    Rule("fan", _fan, 60.0),
    Rule("lid", _lid),
    Rule("metered", _metered),
    Rule("schedule", _schedule),
    Rule("person_active", _person),
    Rule("other_load", _load),
)
"""Of rules that hold alike the first is told of: those that nothing overrides come first."""
