"""The sensors of Linux, from its files: what is missing or broken is reported as not known."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.support import device_tree
from tests.support.device_tree import linux, write

from sapo_swarm.node.governor import rules
from sapo_swarm.node.governor.rules import (
    PRESETS,
    GovernorState,
    MachineMonitor,
    PowerMonitor,
    ResourceLimits,
    ThrottleLevel,
    advance_rules,
)

pytestmark = linux


def test_power_supplies_are_read_and_those_of_a_mouse_are_not(tmp_path: Path) -> None:
    supplies = tmp_path / "class" / "power_supply"
    assert PowerMonitor(tmp_path).read() == (None, None)
    write(supplies / "hidpp_battery_0", type="Battery", scope="Device", status="Discharging", capacity="3")
    assert PowerMonitor(tmp_path).read() == (None, None)
    write(supplies / "AC", type="Mains", online="1")
    write(supplies / "BAT0", type="Battery", status="Charging", capacity="40")
    assert PowerMonitor(tmp_path).read() == (False, 40.0)
    write(supplies / "AC", online="0")
    write(supplies / "BAT0", status="Discharging", capacity="junk")
    assert PowerMonitor(tmp_path).read() == (True, None)
    write(supplies / "tcpm-source-psy", type="USB", online="2")  # USB-C, a voltage that was agreed on
    assert PowerMonitor(tmp_path).read() == (False, None)


def test_the_processor_is_hotter_than_the_board_says_and_broken_sensors_say_nothing(tmp_path: Path) -> None:
    thermal, hwmon = tmp_path / "class" / "thermal", tmp_path / "class" / "hwmon"
    assert rules.read_cpu_celsius(tmp_path) is None
    write(hwmon / "hwmon0", name="nvme", temp1_input="71000")
    assert rules.read_cpu_celsius(tmp_path) is None, "a disk is no processor"
    write(thermal / "thermal_zone0", type="acpitz", temp="27800")
    assert rules.read_cpu_celsius(tmp_path) == 27.8
    write(thermal / "thermal_zone1", type="x86_pkg_temp", temp="64000")
    write(hwmon / "hwmon1", name="k10temp", temp1_input="66500", temp2_input="-273000", temp3_input="255000")
    assert rules.read_cpu_celsius(tmp_path) == 66.5
    write(hwmon / "hwmon1", temp1_input="nonsense")
    assert rules.read_cpu_celsius(tmp_path) == 64.0


@given(st.binary(max_size=40))
def test_whatever_the_files_hold_no_sensor_fails_or_leaves_its_bounds(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        device_tree.laptop(root)
        for path in root.rglob("*"):
            if path.is_file() and path.name not in ("type", "name"):
                path.write_bytes(data)
        now = MachineMonitor(root, root / "sys").readings()
    for value, most in ((now.celsius, 150), (now.charge, 100)):
        assert value is None or 0 <= value <= most


def test_a_laptop_in_trouble_is_held_by_every_rule_and_let_go_once_all_is_well(tmp_path: Path) -> None:
    machine = MachineMonitor(tmp_path, tmp_path / "sys")
    limits = ResourceLimits(
        **PRESETS["eco"] | {"min_free_memory": 0, "pause_when_active": False},  # type: ignore[arg-type]
        min_free_disk=0,
    )
    device_tree.laptop(tmp_path)
    state = advance_rules(GovernorState(), limits, machine.readings(), 0.0)
    assert state.holds == ()
    device_tree.laptop(tmp_path, celsius=85)
    device_tree.power(tmp_path, plugged=False, charge=10)
    state = advance_rules(state, limits, machine.readings(), 1.0)
    assert {hold.code: hold.level for hold in state.holds} == {
        "charge": ThrottleLevel.PAUSE,
        "battery": ThrottleLevel.PAUSE,
        "heat": ThrottleLevel.PAUSE,
    }
    device_tree.laptop(tmp_path)
    for clock in (62.0, 123.0):
        state = advance_rules(state, limits, machine.readings(), clock)
    assert state.holds == ()
