"""What the governor does with what it knows: words, presets, the machine's own readings, keeping it awake."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import psutil
import pytest

from sapo_backends.base import CancelToken
from sapo_swarm.events import StateChanged, Vitals
from sapo_swarm.node.governor import machine
from sapo_swarm.node.governor.machine import SleepInhibitor, inhibitor_command, should_keep_awake, windows_class
from sapo_swarm.node.governor.rules import (
    PRESETS,
    GovernorHold,
    GovernorState,
    MachineMonitor,
    MachineReadings,
    ResourceLimits,
    ThrottleLevel,
)
from sapo_swarm.node.governor.run_control import (
    CROWDED_S,
    RunControl,
    RunRequests,
    apply_command,
    compute_budget,
    find_obstacle,
    running_note,
)
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.round_phases import NodeActivity
from sapo_swarm.node.round_warnings import CROWDED

BATTERY = GovernorHold("battery", "on battery", "once plugged in", 0.0)
SLOWER = GovernorHold("battery", "on battery", "once plugged in", 0.0, ThrottleLevel.SLOW)
MEMORY = GovernorHold("memory", "only 100 MB of memory free", "at 625 MB", 0.0, floor=True)


def test_running_anyway_says_until_when_and_can_be_ended() -> None:
    requests = apply_command(RunRequests(holds=(BATTERY,)), "run_anyway", 3600, 0.0)
    assert find_obstacle(requests, 3599.0, 0.0) is None
    assert "runs anyway until" in running_note(requests, 1.0, 0.0)
    assert find_obstacle(requests, 3601.0, 0.0) == ("battery", BATTERY.sentence)
    assert find_obstacle(apply_command(requests, "obey", 0, 2.0), 2.0, 0.0) == ("battery", BATTERY.sentence)
    assert "r runs anyway" in BATTERY.sentence
    assert "r runs anyway" not in MEMORY.sentence


def test_a_working_node_says_which_rule_slows_it_and_what_lifts_it() -> None:
    requests = RunRequests(holds=(SLOWER,))
    assert find_obstacle(requests, 0.0, 0.0) is None
    assert running_note(requests, 0.0, 0.0) == " · slower: on battery, full speed once plugged in"
    assert (compute_budget(requests, 0.0).duty, compute_budget(requests, 0.0).share) == (0.5, 0.5)
    assert compute_budget(apply_command(requests, "run_anyway", 3600, 0.0), 1.0).duty == 1.0


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_nothing_but_switches_that_exist(name: str) -> None:
    chosen = ResourceLimits(**PRESETS[name])  # type: ignore[arg-type]
    assert set(PRESETS[name]) == set(PRESETS["balanced"])
    assert set(ResourceLimits.__struct_fields__) - set(PRESETS[name]) == {
        "schedule",
        "min_free_disk",
        "max_memory",
        "keep_awake",
    }
    assert (chosen == ResourceLimits()) == (name == "balanced")


def test_a_machine_is_read_without_a_surprise(tmp_path: Path) -> None:
    now = MachineMonitor(tmp_path, tmp_path).readings(idle=True)
    assert (now.on_battery, now.charge) == (None, None)
    assert now.free_memory


def test_the_machine_is_kept_awake_by_a_process_that_ends_with_the_wish() -> None:
    awake = SleepInhibitor((sys.executable, "-c", "import time; time.sleep(100)"))
    children = psutil.Process().children
    before = set(children())
    awake.want(True)
    awake.want(True)
    (child,) = set(children()) - before
    awake.want(False)
    assert not child.is_running()
    SleepInhibitor(("no-such-program-anywhere",)).want(True)
    assert inhibitor_command("darwin")[:2] == ("/usr/bin/caffeinate", "-i")
    assert inhibitor_command("linux")[0] == "systemd-inhibit"


def test_where_the_program_cannot_hold_the_wish_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """systemd-inhibit is there in a container, and logind is not."""
    awake = SleepInhibitor((sys.executable, "-c", ""))
    awake.want(True)
    assert awake._child is not None
    awake._child.wait()
    for wish in (True, True, False, True):
        awake.want(wish)
    assert caplog.text.count("This machine may go to sleep") == 1


def test_a_node_steps_back_on_windows_too() -> None:
    below_normal, idle = 0x4000, 0x40
    assert [windows_class(int(PRESETS[name]["nice"])) for name in ("balanced", "eco")] == [below_normal, idle]


async def test_a_reading_that_fails_ends_no_limit_and_one_thread_has_the_wish_to_stay_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On Windows no other thread takes the wish back: a laptop on battery would stay awake."""
    threads, beats = list[threading.Thread](), iter(range(100))

    class Flaky(MachineMonitor):
        def readings(self, idle: bool = False) -> MachineReadings:
            if next(beats) < 2:
                raise OSError(24, "Too many open files")
            return MachineReadings(on_battery=True)

    class Recorded(SleepInhibitor):
        def want(self, wanted: bool) -> None:
            threads.append(threading.current_thread())

    monkeypatch.setattr(machine, "TICK_S", 0.0)
    monkeypatch.setattr(machine, "SleepInhibitor", Recorded)
    held, journal = asyncio.Event(), Journal(tmp_path / "journal.db")
    control = RunControl(EventBus(journal), NodeActivity(), CancelToken(), lambda _share, _duty: bool(held.set()))
    ticking = asyncio.create_task(
        machine.run_governor(Flaky(tmp_path), ResourceLimits, control, machine.GovernorTicker(), EventBus(journal))
    )
    await asyncio.wait({ticking, asyncio.create_task(held.wait())}, return_when=asyncio.FIRST_COMPLETED)
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    journal.close()
    assert [hold.code for hold in control.requests.holds] == ["battery"]
    assert caplog.text.count("The machine cannot be read now") == 1
    assert len(set(threads)) == 1


async def test_a_node_that_is_paused_reports_no_tokens_per_second_and_no_rounds_per_hour(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    bus, activity, told = EventBus(journal), NodeActivity(), list[tuple[float | None, float | None]]()
    control = RunControl(bus, activity, CancelToken(), lambda _share, _duty: False)
    pace = machine.GovernorTicker(tokens_per_s=900.0, round_s=36.0)

    async def want(_wish: bool) -> None:
        return None

    async with bus.subscribe(0) as (_, queue):
        for activity.state in ("running", "paused", "finishing"):
            await machine._beat(GovernorState(), want, MachineMonitor(tmp_path), ResourceLimits, control, pace, bus)
            while not isinstance(event := await queue.get(), Vitals):
                continue
            told.append((event.tokens_per_s, event.rounds_per_hour))
    journal.close()
    assert told == [(900.0, 100.0), (None, None), (900.0, 100.0)]


async def test_a_node_says_that_other_programs_have_the_processor_after_ten_seconds_of_it(tmp_path: Path) -> None:
    """A step that takes a second takes minutes then, and looked like a hang."""
    journal = Journal(tmp_path / "journal.db")
    activity = NodeActivity()
    control = RunControl(EventBus(journal), activity, CancelToken(), lambda _share, _duty: False)
    await control.say("running", "Working on round 1")

    async def seconds(count: int, taken: bool) -> str:
        for _ in range(count):
            control.observe_others(taken)
        await control.settled()
        (*_, newest) = (event for event in journal.read() if isinstance(event, StateChanged))
        return newest.sentence

    assert await seconds(CROWDED_S - 1, True) == "Working on round 1"
    assert (await seconds(1, True)).endswith(CROWDED)
    assert (await seconds(CROWDED_S - 1, False)).endswith(CROWDED)
    assert CROWDED not in await seconds(1, False)
    activity.state = "paused"
    assert CROWDED not in await seconds(CROWDED_S, True)
    journal.close()


def test_the_time_left_is_estimated_from_what_was_done_since_the_phase_began_and_not_for_an_opening() -> None:
    now = 0.0
    activity = NodeActivity(clock=lambda: now)
    activity.begin("evaluate", 0, "questions", done=0.5)
    now = 10.0
    assert activity.progress(0.75, "").eta_s == 10.0
    activity.begin("open", 0, "weights", timed=False)
    now = 23.0
    assert activity.progress(0.1, "").eta_s == -1.0


@pytest.mark.parametrize(("busy", "own", "taken"), [(99, 40, True), (99, 150, False), (50, 0, False)])
def test_others_have_the_processor_if_it_is_busy_with_less_than_two_fifths_for_this_node(
    busy: float, own: float, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda: busy)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    assert MachineMonitor(tmp_path).taken_by_others(own) is taken


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("working", [False, True])
@pytest.mark.parametrize("on_battery", [None, False, True])
def test_the_machine_is_kept_awake_only_where_asked_plugged_in_and_working(
    asked: bool, working: bool, on_battery: bool | None
) -> None:
    limits, now = ResourceLimits(keep_awake=asked), MachineReadings(on_battery=on_battery)
    assert should_keep_awake(limits, now, working) == (asked and working and on_battery is not True)
