"""The governor under a simulated clock: steps, two thresholds and a dwell a rule, reasons and ways out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.node.governor.rules import (
    RULES,
    GovernorState,
    MachineReadings,
    ResourceLimits,
    ThrottleLevel,
    advance_rules,
)
from sapo_swarm.node.governor.run_control import RunRequests, apply_command, find_obstacle

GB = 10**9
DWELL = {rule.code: rule.dwell for rule in RULES}
URGENT = {rule.code for rule in RULES if rule.urgent}


def after(limits: ResourceLimits, *moments: tuple[float, MachineReadings]) -> GovernorState:
    state = GovernorState()
    for clock, now in moments:
        state = advance_rules(state, limits, now, clock)
    return state


def levels(state: GovernorState) -> dict[str, ThrottleLevel]:
    return {hold.code: hold.level for hold in state.holds}


def test_heat_eases_then_slows_then_pauses_and_lets_go_well_below_each_line() -> None:
    limits = ResourceLimits(slow_celsius=80, max_celsius=90)
    state = after(limits, (0, MachineReadings(celsius=81)))
    assert levels(state) == {"heat": ThrottleLevel.EASE}
    state = advance_rules(state, limits, MachineReadings(celsius=81), DWELL["heat"])
    assert levels(state) == {"heat": ThrottleLevel.SLOW}, "still warm after a dwell with fewer threads"
    state = advance_rules(state, limits, MachineReadings(celsius=91), 31)
    assert levels(state) == {"heat": ThrottleLevel.PAUSE}, "too hot waits for nothing"
    assert levels(advance_rules(state, limits, MachineReadings(celsius=83), 200)) == {"heat": ThrottleLevel.PAUSE}
    state = advance_rules(state, limits, MachineReadings(celsius=81), 200)
    assert levels(state) == {"heat": ThrottleLevel.EASE}
    assert levels(advance_rules(state, limits, MachineReadings(celsius=71), 400)) == {}


def test_thermal_pressure_eases_then_slows_then_pauses_and_lets_go_two_levels_lower() -> None:
    limits = ResourceLimits(slow_thermal_pressure=2)
    assert levels(after(limits, (0, MachineReadings(thermal_pressure=1)))) == {}
    state = after(limits, (0, MachineReadings(thermal_pressure=2)))
    assert levels(state) == {"thermal_pressure": ThrottleLevel.EASE}
    assert state.holds[0].aside == " · slower: macOS tells of heavy thermal pressure, full speed once it is nominal"
    state = advance_rules(state, limits, MachineReadings(thermal_pressure=1), DWELL["thermal_pressure"])
    assert levels(state) == {"thermal_pressure": ThrottleLevel.SLOW}, "still warm after a dwell with fewer threads"
    state = advance_rules(state, limits, MachineReadings(thermal_pressure=3), 31)
    assert levels(state) == {"thermal_pressure": ThrottleLevel.PAUSE}, "too hot waits for nothing"
    assert "goes on once it is moderate" in state.holds[0].sentence
    assert levels(advance_rules(state, limits, MachineReadings(thermal_pressure=2), 100)) == {
        "thermal_pressure": ThrottleLevel.PAUSE
    }
    state = advance_rules(state, limits, MachineReadings(thermal_pressure=1), 100)
    assert levels(state) == {"thermal_pressure": ThrottleLevel.EASE}
    assert levels(advance_rules(state, limits, MachineReadings(thermal_pressure=0), 200)) == {}


THRESHOLDS = {  # rule -> limits, a reading past its line, one between its two lines, one well on the other side
    "memory": (ResourceLimits(min_free_memory=1), "free_memory", GB // 2, int(1.2 * GB), 8 * GB),
    "disk": (ResourceLimits(min_free_disk=1), "free_disk", GB // 2, int(1.2 * GB), 8 * GB),
    "heat": (ResourceLimits(slow_celsius=80), "celsius", 81.0, 75.0, 60.0),
    "thermal_pressure": (ResourceLimits(slow_thermal_pressure=2), "thermal_pressure", 2, 1, 0),
    "person_active": (ResourceLimits(slow_when_active=True), "idle_s", 1.0, 200.0, 1000.0),
    "charge": (
        ResourceLimits(pause_on_battery=False, slow_on_battery=False, min_charge=30),
        "charge",
        29.0,
        33.0,
        90.0,
    ),
}
SWITCHES = {"battery": "on_battery", "schedule": "week_minute"}
"""Rules over something that is so or not: they have a dwell and no second line."""


@pytest.mark.parametrize("code", THRESHOLDS)
def test_every_rule_over_a_number_has_two_lines_and_a_dwell(code: str) -> None:
    limits, name, past, between, well = THRESHOLDS[code]

    def reading(value: float) -> MachineReadings:
        return MachineReadings(**{"on_battery": code == "charge", name: value})  # type: ignore[arg-type]

    assert code not in levels(after(limits, (0, reading(well))))
    state = after(limits, (0, reading(past)))
    assert code in levels(state)
    assert code in levels(advance_rules(state, limits, reading(between), 1000.0)), "between its lines it stays"
    assert code in levels(advance_rules(state, limits, reading(well), DWELL[code] - 0.1)), "it lasts its dwell"
    assert code not in levels(advance_rules(state, limits, reading(well), DWELL[code]))


def test_no_rule_is_left_out_of_that() -> None:
    assert set(DWELL) == set(THRESHOLDS) | set(SWITCHES)
    assert all(dwell >= 20 for dwell in DWELL.values())


def test_a_hold_lasts_its_dwell_even_when_its_reason_is_gone_at_once() -> None:
    state = after(ResourceLimits(), (0, MachineReadings(on_battery=True)), (19, MachineReadings(on_battery=False)))
    assert levels(state) == {"battery": ThrottleLevel.PAUSE}
    assert levels(advance_rules(state, ResourceLimits(), MachineReadings(on_battery=False), 20)) == {}


def test_battery_slows_or_pauses_as_the_person_likes_and_a_low_one_pauses() -> None:
    slow = ResourceLimits(pause_on_battery=False, min_charge=30)
    state = after(slow, (0, MachineReadings(on_battery=True, charge=80)))
    assert levels(state) == {"battery": ThrottleLevel.SLOW}
    state = advance_rules(state, slow, MachineReadings(on_battery=True, charge=10), 1)
    assert levels(state) == {"charge": ThrottleLevel.PAUSE, "battery": ThrottleLevel.SLOW}
    assert "10 %" in state.holds[0].sentence
    assert levels(advance_rules(state, slow, MachineReadings(on_battery=False, charge=11), 30)) == {}
    assert levels(after(ResourceLimits(), (0, MachineReadings(on_battery=True, charge=90)))) == {
        "battery": ThrottleLevel.PAUSE
    }


def test_a_change_of_the_limits_counts_at_once() -> None:
    state = after(ResourceLimits(), (0, MachineReadings(on_battery=True)))
    free = ResourceLimits(pause_on_battery=False, slow_on_battery=False, min_charge=0)
    assert levels(advance_rules(state, free, MachineReadings(on_battery=True), 1)) == {}


def test_little_memory_makes_batches_smaller_before_it_pauses() -> None:
    limits = ResourceLimits(min_free_memory=1.0)
    assert levels(after(limits, (0, MachineReadings(free_memory=int(1.5 * GB))))) == {"memory": ThrottleLevel.EASE}
    state = after(limits, (0, MachineReadings(free_memory=GB // 2)))
    assert levels(state) == {"memory": ThrottleLevel.PAUSE}
    assert levels(advance_rules(state, limits, MachineReadings(free_memory=int(1.2 * GB)), 100)) == {
        "memory": ThrottleLevel.PAUSE
    }
    assert levels(advance_rules(state, limits, MachineReadings(free_memory=int(3 * GB)), 100)) == {}


def test_out_of_hours_it_holds_and_says_until_when() -> None:
    limits = ResourceLimits(schedule="mon-fri 18:00-08:00, sat-sun")
    state = after(limits, (0, MachineReadings(week_minute=12 * 60)))
    assert "until Mon 18:00" in state.holds[0].sentence
    assert levels(advance_rules(state, limits, MachineReadings(week_minute=18 * 60), 3600)) == {}


def test_an_hour_that_the_clock_jumps_counts_at_once_after_the_dwell() -> None:
    """Daylight saving, a time zone, a set clock: the schedule follows the wall clock, dwells the monotonic one."""
    limits = ResourceLimits(schedule="22:00-07:00")
    state = after(limits, (0, MachineReadings(week_minute=6 * 60 + 30)), (1, MachineReadings(week_minute=7 * 60 + 30)))
    assert levels(state) == {"schedule": ThrottleLevel.PAUSE}
    assert levels(advance_rules(state, limits, MachineReadings(week_minute=6 * 60 + 30), 21)) == {}


def test_a_touch_holds_until_the_person_was_away_for_a_while() -> None:
    for limits, step in (
        (ResourceLimits(pause_when_active=True), ThrottleLevel.PAUSE),
        (ResourceLimits(slow_when_active=True), ThrottleLevel.EASE),
    ):
        state = after(limits, (0, MachineReadings(idle_s=2.0)))
        assert levels(state) == {"person_active": step}
        assert levels(advance_rules(state, limits, MachineReadings(idle_s=200.0), 200)) == {"person_active": step}
        assert levels(advance_rules(state, limits, MachineReadings(idle_s=301.0), 301)) == {}
        assert levels(after(limits, (0, MachineReadings(idle_s=200.0)))) == {}, "an old touch starts nothing"
    assert levels(after(ResourceLimits(), (0, MachineReadings(idle_s=0.0)))) == {}


def maybe(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


READINGS = st.builds(
    MachineReadings,
    on_battery=st.none() | st.booleans(),
    celsius=maybe(st.floats(0, 120)),
    free_memory=st.none() | st.integers(0, 4 * GB),
    free_disk=st.none() | st.integers(0, 2 * GB),
    idle_s=maybe(st.floats(0, 1000)),
    week_minute=st.none() | st.integers(0, 7 * 24 * 60 - 1),
    charge=maybe(st.floats(0, 100)),
    thermal_pressure=st.none() | st.integers(0, 4),
)
LIMITS = st.builds(
    ResourceLimits,
    pause_on_battery=st.booleans(),
    slow_on_battery=st.booleans(),
    min_charge=st.floats(0, 100),
    slow_celsius=st.floats(0, 120),
    max_celsius=st.floats(0, 120),
    slow_thermal_pressure=st.integers(0, 4),
    min_free_memory=st.floats(0, 3),
    min_free_disk=st.floats(0, 1.5),
    schedule=st.sampled_from(["", "22:00-07:00", "sat-sun"]),
    pause_when_active=st.booleans(),
    slow_when_active=st.booleans(),
    away_minutes=st.floats(1, 10),
)
WALK = st.lists(st.tuples(st.floats(0.1, 60), READINGS), min_size=1, max_size=40)
HEALTHY = MachineReadings(False, 0.0, 64 * GB, 64 * GB, 1e6, None, 100.0, 0)


@given(LIMITS, WALK)
def test_in_any_sequence_a_rule_turns_at_most_once_a_dwell(
    limits: ResourceLimits, walk: list[tuple[float, MachineReadings]]
) -> None:
    """It never falls within a dwell of a change, nor rises within a dwell of a fall, but for a pause that cannot wait."""
    state, clock = GovernorState(), 0.0
    changed: dict[str, tuple[float, bool]] = {}
    for wait, now in walk:
        clock += wait
        before = levels(state)
        state = advance_rules(state, limits, now, clock)
        found = levels(state)
        for code in DWELL:
            was, is_now = before.get(code, ThrottleLevel.RUN), found.get(code, ThrottleLevel.RUN)
            if was == is_now:
                continue
            then, fell = changed.get(code, (float("-inf"), False))
            falls = is_now < was
            if (falls or fell) and not (code in URGENT and is_now == ThrottleLevel.PAUSE):
                assert clock - then >= DWELL[code], code
            changed[code] = clock, falls


@given(LIMITS, WALK)
def test_every_hold_has_a_reason_and_a_way_out_and_a_healthy_machine_always_works_again(
    limits: ResourceLimits, walk: list[tuple[float, MachineReadings]]
) -> None:
    state, clock = GovernorState(), 0.0
    for wait, now in walk:
        clock += wait
        state = advance_rules(state, limits, now, clock)
        for hold in state.holds:
            assert hold.reason
            assert hold.lifts
        held = find_obstacle(RunRequests(holds=state.holds), 0.0, 0.0)
        assert held is None or (" · goes on " in held[1] and held[1].startswith("Paused: "))
        anyway = apply_command(RunRequests(holds=state.holds), "run_anyway", 3600, 0.0)
        floors = [hold.code for hold in state.holds if hold.floor and hold.level == ThrottleLevel.PAUSE]
        found = find_obstacle(anyway, 1.0, 0.0)
        assert (found[0] if found else None) == (floors[0] if floors else None), "memory and disk are never overridden"
    for _ in range(4):
        clock += 61
        state = advance_rules(state, limits, HEALTHY, clock)
    assert state.holds == ()


@given(WALK)
def test_limits_that_are_off_and_sensors_that_are_not_there_never_hold(
    walk: list[tuple[float, MachineReadings]],
) -> None:
    off = ResourceLimits(
        pause_on_battery=False,
        slow_on_battery=False,
        min_charge=0,
        slow_celsius=0,
        max_celsius=0,
        min_free_memory=0,
        min_free_disk=0,
        slow_thermal_pressure=0,
    )
    assert after(off, *[(clock, now) for clock, (_, now) in enumerate(walk)]).holds == ()
    assert after(ResourceLimits(pause_when_active=True), (0, MachineReadings())).holds == ()
