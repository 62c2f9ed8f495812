"""Whether a node works now: what the person allows, readings of the machine, and the pure rules that follow from both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_backends.errors import size_text
from sapo_swarm.node.governor.sensors import NAMES, MachineReadings

# Hours by weekday, written as people write them:
#
# always            the empty text
# 22:00-07:00       every night
# mon-fri 18:00-08:00, sat-sun
#                   nights of working days (the one after Friday too), whole weekends

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
Window = tuple[int, int]
"""First minute of the week (Monday 00:00 is 0), and length in minutes."""

_RULE = re.compile(
    r"(?:(?P<day>[a-z]{3})(?:-(?P<last>[a-z]{3}))?)?\s*(?:(?P<begin>\d{1,2}:\d\d)-(?P<end>\d{1,2}:\d\d))?"
)
_HOW = "Write hours by weekday, such as: mon-fri 18:00-08:00, sat-sun"


@lru_cache(16)
def parse_schedule(text: str) -> tuple[Window, ...]:
    """The windows in which work is allowed; () for always. Raises ValueError with a sentence that says how to write it."""
    rules = [rule.strip() for rule in text.lower().split(",")]
    return tuple(window for rule in rules if rule for window in _windows(rule))


def _windows(rule: str) -> list[Window]:
    match = _RULE.fullmatch(rule)
    if match is None or not rule:
        raise ValueError(f"{rule!r} is no schedule. {_HOW}")
    first = _day(match["day"] or DAYS[0], rule)
    last = _day(match["last"] or match["day"] or DAYS[-1], rule)
    days = range(first, first + 1 + (last - first) % 7)
    begin, end = (_minute(match["begin"], rule), _minute(match["end"], rule)) if match["begin"] else (0, DAY_MINUTES)
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    return [(day % 7 * DAY_MINUTES + begin, length) for day in days]


def _day(word: str, rule: str) -> int:
    if word not in DAYS:
        raise ValueError(f"{word!r} in {rule!r} is no weekday. {_HOW}")
    return DAYS.index(word)


def _minute(clock: str, rule: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"{clock} in {rule!r} is no time of day. {_HOW}")
    return hours * 60 + minutes


def minutes_until_open(windows: tuple[Window, ...], minute: int) -> int:
    """Minutes until work is allowed: 0 if it is now. minute: since Monday 00:00, local time."""
    if not windows or any((minute - start) % WEEK_MINUTES < length for start, length in windows):
        return 0
    return min((start - minute) % WEEK_MINUTES for start, _ in windows)


def format_week_minute(minute: int) -> str:
    """A minute of the week as people say it: Mon 18:00."""
    day, rest = divmod(minute % WEEK_MINUTES, DAY_MINUTES)
    return f"{DAYS[day].capitalize()} {rest // 60:02d}:{rest % 60:02d}"


# What the person allows a node: visible switches, and presets that only set them. No coordinator can change one.


class ResourceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the person allows. Temperatures in degrees Celsius, sizes in GB, shares in percent."""

    pause_on_battery: Annotated[bool, Meta(description="Pause while the laptop runs on battery")] = True
    slow_on_battery: Annotated[bool, Meta(description="On battery work slower, where it does not pause")] = True
    min_charge: Annotated[
        float, Meta(description="Pause below this charge of the battery, in percent; 0 = never", ge=0, le=100)
    ] = 30.0
    slow_celsius: Annotated[float, Meta(description="Slower above this CPU temperature; 0 = never", ge=0, le=120)] = (
        82.0
    )
    max_celsius: Annotated[float, Meta(description="Pause above this CPU temperature; 0 = never", ge=0, le=120)] = 90.0
    slow_thermal_pressure: Annotated[
        int,
        Meta(
            description="Slower from this thermal pressure on, pause from the next: 1 moderate, 2 heavy, 3 trapping, 4 sleeping; "
            "0 = never (macOS)",
            ge=0,
            le=4,
        ),
    ] = 2
    min_free_memory: Annotated[
        float,
        Meta(description="Pause below this much free memory, in GB; smaller batches below twice that", ge=0, le=1e6),
    ] = 0.5
    max_memory: Annotated[
        float,
        Meta(
            description="A node gets no more memory than this, in GB; 0 = no wall. From its next start on",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    min_free_disk: Annotated[float, Meta(description="Pause below this much free disk, in GB", ge=0, le=1e6)] = 0.5
    schedule: Annotated[
        str, Meta(description="Work only in these hours, such as mon-fri 18:00-08:00, sat-sun; empty = always")
    ] = ""
    pause_when_active: Annotated[bool, Meta(description="Pause while somebody uses keyboard or mouse")] = False
    slow_when_active: Annotated[
        bool, Meta(description="Half the threads while somebody uses keyboard or mouse, where it does not pause")
    ] = False
    away_minutes: Annotated[
        float, Meta(description="Minutes without a touch until the person counts as away", ge=1, le=1440)
    ] = 5.0
    keep_awake: Annotated[
        bool, Meta(description="Keep the computer from going to sleep by itself while it works and is plugged in")
    ] = False
    nice: Annotated[
        int, Meta(description="How far the node steps back for other programs (Unix niceness)", ge=0, le=19)
    ] = 10

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence if the schedule is invalid."""
        parse_schedule(self.schedule)


_ECO: Mapping[str, bool | float | int] = {
    "pause_on_battery": True,
    "slow_on_battery": True,
    "min_charge": 50.0,
    "slow_celsius": 70.0,
    "max_celsius": 80.0,
    "slow_thermal_pressure": 1,
    "min_free_memory": 1.0,
    "pause_when_active": True,
    "slow_when_active": True,
    "away_minutes": 10.0,
    "nice": 19,
}
_BALANCED: Mapping[str, bool | float | int] = {name: getattr(ResourceLimits(), name) for name in _ECO}
PRESETS: Mapping[str, Mapping[str, bool | float | int]] = {
    "eco": _ECO,
    "balanced": _BALANCED,
    "full": {
        **_BALANCED,
        "pause_on_battery": False,
        "slow_celsius": 0.0,
        "max_celsius": 95.0,
        "slow_thermal_pressure": 3,
        "nice": 0,
    },
}
"""Preset -> the switches that it sets. Schedule, disk and keep_awake are left to the person; balanced is the default."""


# When a node holds back, and how far: pure rules over the limits, readings of the machine and the clock.
#
# Every rule has two thresholds (where it begins, and a margin before it ends) and a dwell, so that a value near a line
# does not make training flap. Levels: EASE is half the threads and half the micro-batch, SLOW additionally rests as
# long as it works, PAUSE stops and keeps what is finished. A rule may rise from level to level at once; it falls no
# sooner than a dwell after its last change, and having fallen rises no sooner than a dwell after that. Only a pause for
# memory, disk or heat ignores the dwell. A change of the limits applies at once.


class ThrottleLevel(IntEnum):
    """How far a rule holds the node back."""

    RUN = 0
    EASE = 1
    SLOW = 2
    PAUSE = 3


class ComputeBudget(msgspec.Struct, frozen=True):
    """share: of threads and micro-batch. duty: of the time that is spent working."""

    share: float = 1.0
    duty: float = 1.0


FULL = ComputeBudget()
EFFORTS = {
    ThrottleLevel.RUN: FULL,
    ThrottleLevel.EASE: ComputeBudget(0.5),
    ThrottleLevel.SLOW: ComputeBudget(0.5, 0.5),
    ThrottleLevel.PAUSE: ComputeBudget(0.5, 0.5),
}
OVERRIDE = "r runs anyway for 1 h"


class GovernorHold(msgspec.Struct, frozen=True):
    """One rule that holds. reason: the cause. lifts: when it lets go ("once plugged in"). since: seconds of the steady clock.

    floor: nothing overrides it.
    """

    code: str
    reason: str
    lifts: str
    since: float
    level: ThrottleLevel = ThrottleLevel.PAUSE
    floor: bool = False

    @property
    def sentence(self) -> str:
        """For a pause: why, and every way out."""
        return f"Paused: {self.reason} · goes on {self.lifts}{'' if self.floor else f' · {OVERRIDE}'}"

    @property
    def aside(self) -> str:
        """For a lesser level: the end of another sentence."""
        return f" · slower: {self.reason}, full speed {self.lifts}"


class RuleDecision(msgspec.Struct, frozen=True):
    """What a rule wants now."""

    level: ThrottleLevel
    reason: str = ""
    lifts: str = ""


FREE = RuleDecision(ThrottleLevel.RUN)
Ask = Callable[[ResourceLimits, MachineReadings, ThrottleLevel], RuleDecision]
"""(limits, readings, the rule's current level) -> what it wants. The level decides which of the two thresholds applies."""


class GovernorRule(msgspec.Struct, frozen=True):
    """dwell: seconds. floor: see GovernorHold. urgent: a pause ignores the dwell. escalates: EASE becomes SLOW after a dwell."""

    code: str
    ask: Ask
    dwell: float = 20.0
    floor: bool = False
    urgent: bool = False
    escalates: bool = False


class RuleState(msgspec.Struct, frozen=True):
    """A rule at one moment. since: its last change. fell: that change was downwards."""

    wish: RuleDecision = FREE
    since: float = float("-inf")
    fell: bool = False


class GovernorState(msgspec.Struct, frozen=True):
    """All rules at one moment, in the order of RULES; with the limits they were evaluated under."""

    limits: ResourceLimits | None = None
    rules: tuple[RuleState, ...] = ()

    @property
    def holds(self) -> tuple[GovernorHold, ...]:
        """The rules that hold, the strongest first."""
        found = [
            GovernorHold(rule.code, state.wish.reason, state.wish.lifts, state.since, state.wish.level, rule.floor)
            for rule, state in zip(RULES, self.rules, strict=False)
            if state.wish.level
        ]
        return tuple(sorted(found, key=lambda hold: -hold.level))


def advance_rules(state: GovernorState, limits: ResourceLimits, now: MachineReadings, clock: float) -> GovernorState:
    """The rules a moment later. clock: seconds of the steady clock, never less than before."""
    states = state.rules if state.limits == limits else (RuleState(),) * len(RULES)
    moved = (_move(rule, old, limits, now, clock) for rule, old in zip(RULES, states, strict=True))
    return GovernorState(limits, tuple(moved))


def _move(rule: GovernorRule, old: RuleState, limits: ResourceLimits, now: MachineReadings, clock: float) -> RuleState:
    level, waited = old.wish.level, clock - old.since >= rule.dwell
    wish = rule.ask(limits, now, level)
    if (
        rule.escalates
        and wish.level == ThrottleLevel.EASE
        and (level == ThrottleLevel.SLOW or (level == ThrottleLevel.EASE and waited))
    ):
        wish = msgspec.structs.replace(wish, level=ThrottleLevel.SLOW)
    if wish.level == level:
        return msgspec.structs.replace(old, wish=wish)
    if wish.level > level:
        urgent = rule.urgent and wish.level == ThrottleLevel.PAUSE
        return RuleState(wish, clock) if waited or not old.fell or urgent else old
    return RuleState(wish, clock, fell=True) if waited else old


_GB = 1e9
COOLER = 8.0
"""A hold for heat ends this many degrees below its line."""
SLACK = 1.25
"""A hold for free memory or disk ends at this multiple of its line."""
CHARGED = 5.0
TOUCH_S = 30.0
"""Keyboard or mouse touched within this many seconds: somebody is there."""


def _memory(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    if now.free_memory is None or not limits.min_free_memory:
        return FREE
    free, minimum = now.free_memory, limits.min_free_memory * _GB
    reason = f"only {size_text(free)} of memory free"
    if free < minimum * (SLACK if level == ThrottleLevel.PAUSE else 1.0):
        return RuleDecision(ThrottleLevel.PAUSE, reason, f"at {size_text(minimum * SLACK)}: close something")
    if free < 2 * minimum * (SLACK if level else 1.0):
        return RuleDecision(ThrottleLevel.EASE, reason, f"at {size_text(2 * minimum * SLACK)}")
    return FREE


def _disk(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    minimum = limits.min_free_disk * _GB
    if now.free_disk is None or now.free_disk >= minimum * (SLACK if level else 1.0):
        return FREE
    return RuleDecision(
        ThrottleLevel.PAUSE,
        f"only {size_text(now.free_disk)} of disk free",
        f"at {size_text(minimum * SLACK)}: make room",
    )


def _battery(limits: ResourceLimits, now: MachineReadings, _level: ThrottleLevel) -> RuleDecision:
    if not now.on_battery or not (limits.pause_on_battery or limits.slow_on_battery):
        return FREE
    return RuleDecision(
        ThrottleLevel.PAUSE if limits.pause_on_battery else ThrottleLevel.SLOW, "on battery", "once plugged in"
    )


def _charge(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    if not now.on_battery or now.charge is None or not limits.min_charge:
        return FREE
    line = limits.min_charge + (CHARGED if level else 0.0)
    if now.charge >= line:
        return FREE
    return RuleDecision(ThrottleLevel.PAUSE, f"the battery is at {now.charge:.0f} %", "once plugged in")


def _heat(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    if now.celsius is None:
        return FREE
    reason, hard, soft = f"{now.celsius:.0f} °C", limits.max_celsius, limits.slow_celsius
    if hard and now.celsius > (_below(hard, COOLER) if level == ThrottleLevel.PAUSE else hard):
        return RuleDecision(ThrottleLevel.PAUSE, reason, f"below {_below(hard, COOLER):.0f} °C")
    if soft and now.celsius > (_below(soft, COOLER) if level else soft):
        return RuleDecision(ThrottleLevel.EASE, reason, f"below {_below(soft, COOLER):.0f} °C")
    return FREE


def _pressure(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    """Slower from the line on, a pause from the level above it; each ends two levels below where it begins, or at nominal."""
    line, pressure = limits.slow_thermal_pressure, now.thermal_pressure
    if pressure is None or not line:
        return FREE
    reason = f"macOS tells of {NAMES[pressure]} thermal pressure"
    if pressure >= (max(line, 1) if level == ThrottleLevel.PAUSE else line + 1):
        return RuleDecision(ThrottleLevel.PAUSE, reason, f"once it is {NAMES[line - 1]}")
    if pressure >= (max(line - 1, 1) if level else line):
        return RuleDecision(ThrottleLevel.EASE, reason, f"once it is {NAMES[max(line - 2, 0)]}")
    return FREE


def _below(line: float, margin: float) -> float:
    """Where a hold that began above the line ends: a value that can be reached."""
    return max(line - margin, line / 2)


def _schedule(limits: ResourceLimits, now: MachineReadings, _level: ThrottleLevel) -> RuleDecision:
    if now.week_minute is None or not (wait := minutes_until_open(parse_schedule(limits.schedule), now.week_minute)):
        return FREE
    opening = format_week_minute(now.week_minute + wait)
    return RuleDecision(ThrottleLevel.PAUSE, f"out of hours until {opening}", f"at {opening}")


def _person(limits: ResourceLimits, now: MachineReadings, level: ThrottleLevel) -> RuleDecision:
    """Holds at a touch, ends after away_minutes without one."""
    if now.idle_s is None or not (limits.pause_when_active or limits.slow_when_active):
        return FREE
    if now.idle_s >= (60 * limits.away_minutes if level else TOUCH_S):
        return FREE
    step = ThrottleLevel.PAUSE if limits.pause_when_active else ThrottleLevel.EASE
    return RuleDecision(step, "you are using the computer", f"{limits.away_minutes:g} min after your last touch")


RULES = (
    GovernorRule("memory", _memory, 30.0, floor=True, urgent=True),
    GovernorRule("disk", _disk, 30.0, floor=True, urgent=True),
    GovernorRule("charge", _charge),
    GovernorRule("battery", _battery),
    GovernorRule("heat", _heat, 30.0, urgent=True, escalates=True),
    GovernorRule("thermal_pressure", _pressure, 30.0, urgent=True, escalates=True),
    GovernorRule("schedule", _schedule),
    GovernorRule("person_active", _person),
)
"""Of equally strong rules the first is reported: those that nothing overrides come first."""
