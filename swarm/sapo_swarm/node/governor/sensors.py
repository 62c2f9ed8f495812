"""What the machine reports: power, heat, memory, and when somebody last touched it."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from sapo_swarm.node.clock import week_minute

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
