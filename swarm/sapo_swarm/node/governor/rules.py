"""Whether a node works now: what the person allows, readings of the machine, and the pure rules that follow from both."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_backends.errors import size_text
from sapo_swarm.node.clock import week_minute

# What the machine reports: power, heat, memory, and when somebody last touched it.

# The readings that the governor gets.


class MachineReadings(msgspec.Struct, frozen=True):
    """The machine at one moment; None for what cannot be read. memory and disk in bytes.

    idle_s: seconds since somebody touched keyboard or mouse. week_minute: minutes since Monday 00:00, local time. charge: of
    the battery, in percent. thermal_pressure: macOS's, 0 (nominal) to 4; see NAMES.
    """

    on_battery: bool | None = None
    celsius: float | None = None
    free_memory: int | None = None
    free_disk: int | None = None
    idle_s: float | None = None
    week_minute: int | None = None
    charge: float | None = None
    thermal_pressure: int | None = None


# What Linux reports in files: power supplies and temperatures.
#
# A file that is missing or holds nonsense gives None. proc, sysfs: Linux's trees, which tests may fake.

SYSFS, PROC = Path("/sys"), Path("/proc")
_PROCESSOR = re.compile(
    r"coretemp|k10temp|zenpower|x86_pkg_temp|TCPU|cpu.*|soc.*|.*cpu[-_]?thermal", re.IGNORECASE | re.ASCII
)
_BOARD = "acpitz"
"""A sensor near the processor, where there is no better one."""
_ONLINE = frozenset("12")
"""Values of a supply's `online`: at a fixed voltage, at a negotiated one."""
HOTTEST = 150.0
"""Degrees above which a sensor is broken."""


def read_kernel_file(path: Path) -> str:
    """The text of a small file; "" where there is none."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _numbers(paths: Iterable[Path], least: float, most: float) -> Iterator[float]:
    """Whole numbers within bounds, one per file; anything else is left out."""
    for path in paths:
        text = read_kernel_file(path)
        if re.fullmatch(r"-?\d{1,9}", text) and least <= float(text) <= most:
            yield float(text)


def read_power_supplies(sysfs: Path) -> tuple[bool | None, float | None]:
    """(on battery, charge in percent). A mouse or a headset has a battery too: its scope is Device, and it does not count."""
    online, states, charges = list[str](), list[str](), list[float]()
    for supply in sorted((sysfs / "class" / "power_supply").glob("*")):
        kind = read_kernel_file(supply / "type")
        if kind in ("Mains", "USB"):
            online.append(read_kernel_file(supply / "online"))
        elif kind == "Battery" and read_kernel_file(supply / "scope") != "Device":
            states.append(read_kernel_file(supply / "status"))
            charges += [min(charge, 100.0) for charge in _numbers([supply / "capacity"], 0, 1000)]
    if not states:
        return None, None
    charge = sum(charges) / len(charges) if charges else None
    return not _ONLINE & set(online) and "Discharging" in states, charge


def read_cpu_celsius(sysfs: Path) -> float | None:
    """The hottest sensor of the processor; else that of the board."""
    temperatures: dict[bool, list[float]] = {True: [], False: []}
    for chip in (sysfs / "class" / "hwmon").glob("hwmon*"):
        if (name := read_kernel_file(chip / "name")) and (_PROCESSOR.fullmatch(name) or name == _BOARD):
            temperatures[name != _BOARD] += _numbers(chip.glob("temp*_input"), 1, 1000 * HOTTEST)
    for zone in (sysfs / "class" / "thermal").glob("thermal_zone*"):
        if (name := read_kernel_file(zone / "type")) and (_PROCESSOR.fullmatch(name) or name == _BOARD):
            temperatures[name != _BOARD] += _numbers([zone / "temp"], 1, 1000 * HOTTEST)
    degrees = temperatures[True] or temperatures[False]
    return max(degrees) / 1000 if degrees else None


# Programs of the system that are asked.

LIMIT_S = 2.0


def command_output(command: Sequence[str]) -> str:
    """What a program printed; "" when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",  # the registry of a Mac holds names in any encoding
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


# How long ago somebody last touched keyboard or mouse. None if the platform does not say; never what was typed.
#
# Linux: the terminals' own clocks (any terminal, a remote one too), and the desktop's on GNOME and KDE over D-Bus.
# macOS: the input system's registry entry. Windows: GetLastInputInfo.

IDLE_LOOK_EVERY_S = 5.0
AGAIN_S = 60.0
"""A way that did not answer is asked again after this time: at login a desktop starts after the node, and a busy machine is
slow."""
_DESKTOPS = (
    ("org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core", "org.gnome.Mutter.IdleMonitor.GetIdletime"),
    ("org.freedesktop.ScreenSaver", "/ScreenSaver", "org.freedesktop.ScreenSaver.GetSessionIdleTime"),
)
"""Name on the session bus, object, method; each answers in milliseconds."""
IdleAsk = Callable[[], float | None]
"""Seconds; None: no answer."""


class IdleClock:
    """Asks at most every LOOK_EVERY_S seconds; a way that does not answer only every AGAIN_S."""

    def __init__(self, ways: Sequence[IdleAsk] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ways = dict.fromkeys(platform_ways() if ways is None else ways, -math.inf)
        self._clock = clock
        self._looked = -IDLE_LOOK_EVERY_S
        self._seconds: float | None = None

    def seconds(self) -> float | None:
        """Seconds without a touch, by whichever way saw the latest one."""
        now = self._clock()
        if now - self._looked >= IDLE_LOOK_EVERY_S:
            self._looked = now
            answers = {way: way() for way, due in self._ways.items() if now >= due}
            self._ways |= {way: now + AGAIN_S for way, answer in answers.items() if answer is None}
            self._seconds = min((a for a in answers.values() if a is not None), default=None)
            return self._seconds
        return None if self._seconds is None else self._seconds + now - self._looked


def platform_ways() -> list[IdleAsk]:
    """The ways of asking that may work on this platform; each answers None if it does not."""
    if sys.platform == "darwin":
        return [_registry]
    if sys.platform == "win32":
        return [_last_input]
    return [_terminals, *(_on_bus(*names) for names in _DESKTOPS)]


def _terminals() -> float | None:
    """Terminal devices record when they were last read, to about eight seconds."""
    devices = [*Path("/dev/pts").glob("[0-9]*"), *Path("/dev").glob("tty[1-9]*")]
    return _since(devices, time.time())


def _since(devices: Iterable[Path], now: float) -> float | None:
    ago = []
    for device in devices:
        try:
            ago.append(now - device.stat().st_atime)
        except OSError:  # closed meanwhile
            continue
    return min((seconds for seconds in ago if seconds >= 0), default=None)  # negative: the clock was set back since


def _on_bus(name: str, path: str, method: str) -> IdleAsk:
    return lambda: parse_dbus_idle(command_output(["gdbus", "call", "--session", "-d", name, "-o", path, "-m", method]))


def parse_dbus_idle(reply: str) -> float | None:
    """Seconds from a D-Bus reply such as "(uint64 61234,)"."""
    match = re.search(r"\(uint\d+ (\d+),?\)", reply)
    return int(match[1]) / 1e3 if match else None


def _registry() -> float | None:
    return parse_ioreg_idle(command_output(["/usr/sbin/ioreg", "-c", "IOHIDSystem", "-d", "4"]))


def parse_ioreg_idle(reply: str) -> float | None:
    """Seconds from ioreg's line `"HIDIdleTime" = 61234000000`."""
    match = re.search(r'"HIDIdleTime" = (\d+)', reply)
    return int(match[1]) / 1e9 if match else None


def _last_input() -> float | None:
    if sys.platform != "win32":
        return None
    import ctypes

    class LastInput(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("tick", ctypes.c_uint))

    answer = LastInput(ctypes.sizeof(LastInput), 0)
    if not ctypes.windll.user32.GetLastInputInfo(ctypes.byref(answer)):
        return None
    return ((ctypes.windll.kernel32.GetTickCount() - answer.tick) & 0xFFFFFFFF) / 1e3


# How far macOS throttles itself because of heat. It reveals no temperature without root, but this to everybody.

MACOS_LOOK_EVERY_S = 5.0
NAMES = ("nominal", "moderate", "heavy", "trapping", "sleeping")
"""Names of the levels 0 to 4, as Apple's powermetrics spells them. From "heavy" on the processor is slowed down."""
NOTIFIED = ("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
LIMITS = ("/usr/bin/pmset", "-g", "therm")
_SLOWED = ((100, 0), (80, 1), (50, 2), (1, 3))
"""Lower bound of the processor's speed in percent -> level, for macOS versions that report no level."""
MacosAsk = Callable[[Sequence[str]], str]


class ThermalPressure:
    """Asks at most every LOOK_EVERY_S seconds. platform: as in sys.platform. ask: returns what a program prints."""

    def __init__(
        self, platform: str = sys.platform, ask: MacosAsk = command_output, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._here, self._looked = platform == "darwin", float("-inf")
        self._known: int | None = None

    def read(self) -> int | None:
        """The level, 0 to 4; None where it cannot be read."""
        if self._here and self._clock() - self._looked >= MACOS_LOOK_EVERY_S:
            self._looked = self._clock()
            self._known = parse_notifyutil_level(self._ask(NOTIFIED))
            if self._known is None:
                self._known = parse_pmset_level(self._ask(LIMITS))
        return self._known


def parse_notifyutil_level(reply: str) -> int | None:
    """The level from notifyutil's line `com.apple.system.thermalpressurelevel 0`."""
    match = re.fullmatch(r"\S+ (\d)", reply.strip())
    return int(match[1]) if match and int(match[1]) < len(NAMES) else None


def parse_pmset_level(reply: str) -> int | None:
    """The level from pmset's output: the limits `CPU_Speed_Limit = 72` and `CPU_Scheduler_Limit = 100` on Intel, or notes
    that nothing was recorded."""
    limits = [int(percent) for percent in re.findall(r"CPU_S(?:peed|cheduler)_Limit\s*=\s*(\d{1,3})\b", reply)]
    if not limits:
        return 0 if re.search(r"No thermal warning level has been recorded", reply) else None
    left = min(limits)
    return next((level for threshold, level in _SLOWED if left >= threshold), 4)


# All readings together, and the memory and processor time of this process: from psutil where it serves, else as above. It is
# imported where it is used, for the dashboard needs the names of the readings before its first frame, and nothing else of it.

LINUX = sys.platform.startswith("linux")


class PowerMonitor:
    """Mains and batteries. sysfs: Linux' device tree."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs

    def read(self) -> tuple[bool | None, float | None]:
        """(on battery, charge in percent); None for what this machine does not have or report."""
        import psutil

        if LINUX:
            return read_power_supplies(self._sysfs)
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if battery is None:
            return None, None
        plugged = battery.power_plugged
        return None if plugged is None else not plugged, float(battery.percent)


BUSY, OTHERS = 90.0, 0.6
"""The processor is taken by others from this percentage on, if they have this share of it."""


class MachineMonitor:
    """Reads the machine and this process tree. folder: whose disk is watched. sysfs: Linux' device tree."""

    def __init__(self, folder: Path, sysfs: Path = SYSFS) -> None:
        import psutil

        self._folder, self._sysfs = folder, sysfs
        self._power = PowerMonitor(sysfs)
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._idle, self._pressure = IdleClock(), ThermalPressure()

    def readings(self, idle: bool = False) -> MachineReadings:
        """idle: also ask when keyboard or mouse were last touched."""
        import psutil

        on_battery, charge = self._power.read()
        return MachineReadings(
            on_battery=on_battery,
            charge=charge,
            celsius=self.celsius(),
            thermal_pressure=self._pressure.read(),
            free_memory=psutil.virtual_memory().available,
            free_disk=self._free_disk(),
            idle_s=self._idle.seconds() if idle else None,
            week_minute=week_minute(),
        )

    def _free_disk(self) -> int | None:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:  # a removed disk is reported by whoever writes to it
            return None

    def celsius(self) -> float | None:
        """The hottest processor sensor; None where there is none to read."""
        import psutil

        if LINUX:
            return read_cpu_celsius(self._sysfs)
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        temperatures = [reading.current for readings in sensors.values() for reading in readings]
        return float(max(temperatures)) if temperatures else None

    def usage(self) -> tuple[int, float]:
        """Resident bytes and CPU percent (100 = one core) of this process and its children."""
        import psutil

        memory, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        for child in self._process.children(recursive=True):
            try:
                memory += child.memory_info().rss
            except psutil.Error:
                continue
        return memory, cpu

    def taken_by_others(self, cpu: float) -> bool:
        """Whether the processor is busy and other programs have most of it, since the last call. cpu: of this process."""
        import psutil

        busy, cores = psutil.cpu_percent(), psutil.cpu_count() or 1
        return busy >= BUSY and cpu < (1.0 - OTHERS) * busy * cores


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
    if free >= 2 * minimum * (SLACK if level else 1.0):
        return FREE
    reason = f"only {size_text(free)} of memory free"
    if free < minimum * (SLACK if level == ThrottleLevel.PAUSE else 1.0):
        return RuleDecision(ThrottleLevel.PAUSE, reason, f"at {size_text(minimum * SLACK)}: close something")
    return RuleDecision(ThrottleLevel.EASE, reason, f"at {size_text(2 * minimum * SLACK)}")


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
