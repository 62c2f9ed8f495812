"""The doctor: what works here, what does not, and the command that fixes it; and each sensor that a limit can use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from sapo_backends.common import hardware
from sapo_backends.errors import size_text
from sapo_backends.packages import TORCH, install_command
from sapo_desktop import __version__, settings
from sapo_desktop.errors import USER_ERRORS, AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine.self_test import Finding
from sapo_desktop.services.nodes import children
from sapo_swarm.config import RunConfig
from sapo_swarm.node.checkpoints import free_bytes
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.governor.rules import NAMES, SYSFS, MachineMonitor, command_output

# The doctor's lines about what the limits can use: each sensor with its present value, or that it is not available.


def sensor_findings(folder: Path, sysfs: Path = SYSFS) -> Iterator[Finding]:
    """One line per sensor. folder: on the disk that is watched. sysfs: Linux's device tree."""
    now = MachineMonitor(folder, sysfs).readings(idle=True)
    power = None if now.on_battery is None else ("on battery" if now.on_battery else "plugged in")
    if power and now.charge is not None:
        power = f"{power}, {now.charge:.0f} %"
    yield _line("battery", power, "pause_on_battery, slow_on_battery and min_charge")
    yield _line("heat", None if now.celsius is None else f"{now.celsius:.0f} °C", "slow_celsius and max_celsius")
    pressure = None if now.thermal_pressure is None else NAMES[now.thermal_pressure]
    yield _line("thermal pressure", pressure, "slow_thermal_pressure")
    touched = None if now.idle_s is None else f"last touch of a keyboard or mouse {format_age(now.idle_s)} ago"
    yield _line("activity", touched, "pause_when_active and slow_when_active")


def _line(what: str, says: str | None, settings: str) -> Finding:
    if says is None:
        return Finding("note", what, f"not available here: {settings} never hold{'' if ' and ' in settings else 's'}")
    return Finding("ok", what, says)


# The doctor: what works here, what does not, and the command that fixes it.

_DISK_NEEDED = 10**9


MeanPrompt = Callable[[Home, RunConfig], float]
"""Mean tokens of the questions of a run's tasks; 0 where they are not counted."""


def run_all_checks(mean_prompt: MeanPrompt) -> Iterator[Finding]:
    """Every check, in the order a person would want to read it."""
    home = Home.find()
    yield Finding("ok", "version", f"sapo-desktop {__version__}, Python {platform.python_version()}")
    yield _machine()
    yield _disk(home)
    yield _settings(home)
    yield from _engines()
    yield from memory_and_speed_findings(home, mean_prompt)
    yield from _sensors(home)
    yield asyncio.run(_scorer())
    yield asyncio.run(_node(home))


def _machine() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    text = (
        f"{platform.system()} {platform.machine()}, {cores} core{'' if cores == 1 else 's'}, "
        f"{size_text(memory.available)} of {size_text(memory.total)} memory free"
    )
    if runs_under_rosetta():
        return Finding(
            "fail", "machine", f"{text}. This Python runs under Rosetta: install an arm64 Python to use MLX."
        )
    return Finding("ok", "machine", text)


def runs_under_rosetta(
    system: str = sys.platform, machine: str = platform.machine(), ask: Callable[[Sequence[str]], str] = command_output
) -> bool:
    """Whether this Python was built for Intel and runs on Apple Silicon, where platform.processor() then says "i386".

    system, machine: as in sys.platform and platform.machine(). ask: runs a command and returns what it prints.
    """
    intel = system == "darwin" and machine == "x86_64"
    return intel and ask(["/usr/sbin/sysctl", "-n", "hw.optional.arm64"]).strip() == "1"


def _disk(home: Home) -> Finding:
    try:
        home.prepare()
        free = free_bytes(home.data)
    except (AppError, OSError) as error:
        return Finding("fail", "disk", str(error))
    text = f"{size_text(free)} free at {home.data}"
    if free > _DISK_NEEDED:
        return Finding("ok", "disk", text)
    return Finding("fail", "disk", f"{text}. Free at least {size_text(_DISK_NEEDED)}.")


def _settings(home: Home) -> Finding:
    from sapo_desktop.settings import flags

    try:
        flags.check_config(settings.load_settings(home.settings).run)
    except USER_ERRORS as error:
        return Finding("fail", "settings", str(error))
    return Finding("ok", "settings", str(home.settings) if home.settings.exists() else "defaults (no file yet)")


def _engines() -> Iterator[Finding]:
    from sapo_backends import registry
    from sapo_backends.errors import BackendUnavailable

    can_train = False
    for name in registry.known_backends():
        if name == "fake":  # the example for engine authors, and what tests train
            continue
        try:
            backend = registry.get_backend(name)
            backend.check()
        except BackendUnavailable as error:
            if "+" not in name:  # of a pair, the missing part has its own line
                yield Finding("note", name, str(error))
            continue
        verbs = "generates and trains" if backend.CAN_TRAIN else "generates"
        can_train |= backend.CAN_TRAIN
        yield Finding("ok", name, f"{verbs} on {', '.join(backend.devices_here())}")
        if name == "torch":
            yield _compiler()
            yield from _fallbacks()
    if not can_train:
        yield Finding("fail", "trainer", f"No engine that trains is installed: {install_command(*TORCH)}")


def _compiler() -> Finding:
    """Whether the torch engine's kernels for small models and for layers with a state can be compiled."""
    compiler = hardware.c_compiler()
    if compiler is None:
        fix = "xcode-select --install" if sys.platform == "darwin" else "install gcc or clang"
        return Finding(
            "note",
            "compiler",
            f"none: small models in float32 take up to twice the time, hybrids longer. To change it: {fix}",
        )
    return Finding("ok", "compiler", f"{compiler}, for small models in float32 and for hybrids")


def _fallbacks() -> Iterator[Finding]:
    """Fast paths of the torch engine that should work here and do not; runs then take a slower one."""
    from sapo_backends.errors import BackendUnavailable
    from sapo_backends.torch_backend import device_check
    from sapo_backends.torch_backend.runtime import LEFT_OUT, PATHS

    try:
        fallbacks = device_check.on_processor()
    except BackendUnavailable as error:
        yield Finding("fail", "torch", str(error))
        return
    for name, reason in fallbacks.items():
        if name != "native" or _compiler().verdict == "ok":  # a missing compiler has a line of its own
            yield Finding("note", "torch", f"slower than it could be: {PATHS[name]} cannot be used here ({reason})")
    for name in sorted(LEFT_OUT):
        yield Finding("note", "torch", f"slower than it could be: SAPO_WITHOUT leaves out {PATHS.get(name, name)}")


def memory_and_speed_findings(home: Home, mean_prompt: MeanPrompt = lambda *_: 0.0) -> Iterator[Finding]:
    """Whether rounds with these settings fit into memory, and whether the engine was chosen by measurement."""
    from sapo_backends.errors import BackendError
    from sapo_desktop.services.machine import memory_plan, speed
    from sapo_desktop.settings import flags
    from sapo_swarm.tasks.own.spec import BadTask

    with contextlib.suppress(AppError, BackendError, BadTask):  # these and missing engines have their own lines
        loaded = settings.load_settings(home.settings)
        run = flags.propose_run(loaded.run)
        room, prompt = memory_plan.node_memory_bytes(loaded.limits), mean_prompt(home, run)
        plan = memory_plan.plan_round_memory(run, room, prompt=prompt)
        if plan is not None:
            text = f"{run.model}: {plan.sentence}"
            yield (
                Finding("ok", "memory", text) if plan.fits else Finding("fail", "memory", f"{text}. {plan.suggestion}")
            )
        best = speed.choose_fastest(home, run)
        if best is None:
            yield _unmeasured(home, run)
        else:
            yield Finding("ok", "speed", f"{run.model}: new runs use {best.candidate}; {best.reason}")


def _unmeasured(home: Home, run: RunConfig) -> Finding:
    """Without a bench: the result of the short measurement at the first load, if there was one."""
    from sapo_backends.measure import precision
    from sapo_desktop.services.machine import speed

    seconds = speed.precision_seconds(home, run)
    used = (
        f"new runs use {precision.faster_precision(seconds)}, the faster at its first load"
        if seconds
        else "defaults are used"
    )
    return Finding("note", "speed", f"{run.model} was not measured here, {used}: sapo-desktop bench")


def _sensors(home: Home) -> Iterator[Finding]:
    with contextlib.suppress(OSError):  # an unreadable disk has its own line
        yield from sensor_findings(home.data)


async def _scorer() -> Finding:
    from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable

    try:
        async with Scorer() as scorer:
            limits, missing = await scorer.ready()
    except ScorerUnavailable as error:
        return Finding("fail", "scorer", str(error))
    if missing:
        return Finding("note", "scorer", f"works, but this platform cannot limit: {', '.join(missing)}")
    return Finding("ok", "scorer", f"limited worker: {', '.join(limits)}")


async def stream_findings() -> AsyncIterator[Finding]:
    """The findings of run_all_checks(), one by one, from a separate process: inspecting engines loads heavy libraries.

    Raises AppError when that process itself fails.
    """
    count = 0
    async with children.verb_process(["doctor", "--json"]) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            count += 1
            yield Finding(**json.loads(line))
        if await process.wait() not in (0, 1) or not count:
            raise AppError("The doctor itself failed. Run it in a terminal: sapo-desktop doctor")


async def _node(home: Home) -> Finding:
    from sapo_desktop.services.nodes.supervisor import query_status
    from sapo_swarm.node.control_api import NodeError

    try:
        status = await query_status(home)
    except NodeError as error:
        return Finding("fail", "node", str(error))
    if status is None:
        return Finding("note", "node", "none is running")
    return Finding("ok", "node", f"process {status.pid}: {status.sentence}")
