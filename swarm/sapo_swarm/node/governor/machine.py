"""Once a second: readings of the machine, the limits that follow from them, and what the node does to the machine: it steps
back, keeps it awake, and stops at a memory limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from sapo_swarm.events import Event, RoundFinished, Vitals
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.governor.rules import (
    PROC,
    GovernorState,
    MachineMonitor,
    MachineReadings,
    ResourceLimits,
    advance_rules,
    read_kernel_file,
)
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.journal import EventBus
from sapo_swarm.types import UNREADABLE

# Keeps the machine from going to sleep by itself while the node works: a program of the platform that inhibits sleep as
# long as it runs, and ends with the node. What the person does (closing the lid, the power key) is never blocked.

LOG = logging.getLogger(__name__)
_CONTINUOUS, _SYSTEM_REQUIRED = 0x80000000, 0x00000001


def inhibitor_command(platform: str = sys.platform) -> Sequence[str]:
    """The program that inhibits sleep; () if the platform has none."""
    if platform == "darwin":
        return "/usr/bin/caffeinate", "-i", "-w", str(os.getpid())
    if platform.startswith("linux"):
        why = ("--what=idle", "--who=sapo-desktop", "--why=trains a model", "--mode=block")
        return "systemd-inhibit", *why, "tail", f"--pid={os.getpid()}", "-f", "/dev/null"
    return ()


def should_keep_awake(limits: ResourceLimits, now: MachineReadings, working: bool) -> bool:
    """Only if the person asked for it, while the node works, and never on battery."""
    return limits.keep_awake and working and not now.on_battery


class SleepInhibitor:
    """Call from one thread."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = inhibitor_command() if command is None else command
        self._child: subprocess.Popen[bytes] | None = None
        self._wanted = False

    def want(self, wanted: bool) -> None:
        """Keep the machine awake from now on, or no longer. If that is not possible, it is logged once and nothing else
        happens."""
        if wanted == self._wanted:
            if self._child is not None and self._child.poll() is not None:
                self._give_up(f"{self._command[0]} ended by itself")
            return
        self._wanted = wanted
        if sys.platform == "win32":
            import ctypes

            ctypes.windll.kernel32.SetThreadExecutionState(_CONTINUOUS | (_SYSTEM_REQUIRED if wanted else 0))
        elif wanted:
            self._hold()
        else:
            self._let_go()

    def _hold(self) -> None:
        if not self._command:
            return
        try:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        LOG.warning("This machine may go to sleep while the node works: %s", why)
        self._child, self._command = None, ()

    def _let_go(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            child.wait()


# How far a node yields the processor to other programs.


def step_back(nice: int, proc: Path = PROC) -> None:
    """Use that niceness from now on; it is only ever raised. Does nothing if the system has no niceness.

    Desktop Linux shares the processor among sessions first, each with its own niceness, and only within a session among
    processes: a node that leads its session (in the background, at login) sets the session's too. In a terminal the session
    is the person's. Windows has priority classes instead.
    """
    if sys.platform == "win32":
        if nice:
            with contextlib.suppress(psutil.Error, OSError):
                psutil.Process().nice(windows_class(nice))
        return
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nice)
    with contextlib.suppress(OSError, AttributeError):
        if os.getsid(0) == os.getpid():
            with (proc / "self" / "autogroup").open("r+") as group:
                group.write(str(nice))


def windows_class(nice: int) -> int:
    """The nearest priority class: BELOW_NORMAL, from 15 on IDLE. Children of the process inherit it."""
    return 0x40 if nice >= 15 else 0x4000


# Running out of memory: the limit that a person may set, how it shows, and what the end of the last session says about
# it.
#
# An engine that is refused memory says so, and the node continues with half (RunControl.failed). A process that the
# system kills for lack of memory says nothing; but Linux counts these kills, so the next session recognises one that
# neither ended by itself nor left the count unchanged.

FILE = "session.json"
LEAST_GB = 0.5


def limit_process_memory(gb: float) -> bool:
    """From now on this process gets at most this much memory in GB, but no less than LEAST_GB, which it needs to say anything
    at all; requests beyond it are refused. 0 = no limit.

    False if the system has no effective limit (only Linux counts what a process really asked for).
    """
    if sys.platform != "linux":
        return False
    import resource

    limit, hard = (
        int(max(gb, LEAST_GB) * 1e9) if gb else resource.RLIM_INFINITY,
        resource.getrlimit(resource.RLIMIT_DATA)[1],
    )
    if hard != resource.RLIM_INFINITY:
        limit = hard if limit == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return True


class LastSession(msgspec.Struct, frozen=True):
    """What a session leaves behind while it runs. boot: of the system; kills: processes killed for lack of memory by then;
    deaths: consecutive earlier sessions that ended that way without a new round."""

    boot: str
    kills: int
    deaths: int = 0
    rounds: int = 0


@contextlib.contextmanager
def track_oom_deaths(folder: Path, rounds: int, proc: Path = PROC) -> Iterator[int]:
    """Wraps a session of the model in that folder; yields how many consecutive sessions before it the system killed for lack
    of memory.

    rounds: done by now. 0 if the system counts no such kills, or the disk refuses the note.
    """
    path = folder / FILE
    boot, kills = read_kernel_file(proc / "sys" / "kernel" / "random" / "boot_id"), _kills(proc)
    deaths = 0
    if (last := _read(path)) is not None and kills is not None and last.boot == boot and kills > last.kills:
        deaths = 1 if rounds > last.rounds else last.deaths + 1
    if kills is not None:
        with contextlib.suppress(OSError):
            path.write_bytes(msgspec.json.encode(LastSession(boot, kills, deaths, rounds)))
    try:
        yield deaths
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _kills(proc: Path) -> int | None:
    match = re.search(r"^oom_kill (\d{1,18})$", read_kernel_file(proc / "vmstat"), re.MULTILINE)
    return int(match[1]) if match else None


def _read(path: Path) -> LastSession | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LastSession)
    except (OSError, *UNREADABLE):
        return None


# Once a second: readings of the machine, the limits that follow from them, and how fast the node is.

TICK_S = 1.0
_SMOOTH = 0.2
"""Weight of the newest round in the smoothed seconds per round."""


@dataclass
class GovernorTicker:
    """tokens_per_s: sampled in the last round and its stage. round_s: smoothed seconds from one round's end to the next's."""

    tokens_per_s: float | None = None
    round_s: float | None = None
    _last: float = 0.0

    def paused(self) -> None:
        """Keeps a pause from counting as a slow round."""
        self._last = 0.0

    def count(self, events: Sequence[Event]) -> None:
        """Count a finished round with these events."""
        (done,) = (event for event in events if isinstance(event, RoundFinished))
        if not done.examples:
            self.tokens_per_s = done.tokens_generated / max(done.seconds.get("generate", 0.0), 1e-6)
        now = time.monotonic()
        if self._last:
            took = now - self._last
            self.round_s = took if self.round_s is None else (1 - _SMOOTH) * self.round_s + _SMOOTH * took
        self._last = now


async def run_governor(
    machine: MachineMonitor,
    allowed: Callable[[], ResourceLimits],
    run_control: RunControl,
    pace: GovernorTicker,
    bus: EventBus,
) -> None:
    """Until cancelled, once a second: read the machine, apply the limits, stream the vitals. A failed reading is logged once,
    and the previous limits stay in force."""
    state, awake, failed = GovernorState(), SleepInhibitor(), ""
    thread = ThreadPoolExecutor(1, "awake")  # on Windows the request belongs to its thread

    def want(wish: bool) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(thread, awake.want, wish)

    try:
        while True:
            try:
                state = await _beat(state, want, machine, allowed, run_control, pace, bus)
                failed = ""
            except Exception as error:  # out of files, a sensor's driver: the limits still apply
                if failed != (failed := f"{type(error).__name__}: {error}"):
                    LOG.exception("The machine cannot be read now")
            await asyncio.sleep(TICK_S)
    finally:
        await want(False)
        thread.shutdown(wait=False)


async def _beat(
    state: GovernorState,
    want: Callable[[bool], Awaitable[None]],
    machine: MachineMonitor,
    allowed: Callable[[], ResourceLimits],
    run_control: RunControl,
    pace: GovernorTicker,
    bus: EventBus,
) -> GovernorState:
    limits = await asyncio.to_thread(allowed)
    idle = limits.pause_when_active or limits.slow_when_active
    now = await asyncio.to_thread(machine.readings, idle)
    used, cpu = await asyncio.to_thread(machine.usage)
    run_control.observe_others(machine.taken_by_others(cpu))
    state = advance_rules(state, limits, now, steady_seconds())
    run_control.hold(state.holds)
    run_control.ease()
    await want(should_keep_awake(limits, now, run_control.working))
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
