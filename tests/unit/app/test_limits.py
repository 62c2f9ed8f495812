"""Presets of the limits, and what the doctor says of the sensors that they need."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import device_tree
from tests.support.device_tree import linux

from sapo_desktop import cli, settings
from sapo_desktop.services.machine import doctor


def test_a_preset_sets_the_switches_that_it_shows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["config", "set", "limits.schedule", "22:00-07:00"]) == 0
    assert cli.run_command_line(["config", "preset", "eco"]) == 0
    assert "limits.pause_when_active = true" in capsys.readouterr().out
    kept = settings.load_settings(tmp_path / "config.toml").limits
    assert (kept.schedule, kept.pause_when_active, kept.nice) == ("22:00-07:00", True, 19)
    assert cli.run_command_line(["config", "preset", "ekko"]) == 2
    assert "eco|balanced|full" in capsys.readouterr().err
    assert settings.load_settings(tmp_path / "config.toml").limits == kept


def test_a_sensor_that_is_not_there_is_said_to_be_not_available_here(tmp_path: Path) -> None:
    found = {line.what: line for line in doctor.sensor_findings(tmp_path, tmp_path / "sys")}
    assert set(found) == {"battery", "heat", "thermal pressure", "activity"}
    for what in ("battery", "heat", "thermal pressure"):
        assert found[what].verdict == "note"
    assert found["battery"].text.startswith("not available here: pause_on_battery, slow_on_battery and min_charge")
    assert found["thermal pressure"].text == "not available here: slow_thermal_pressure never holds"


@linux
def test_a_sensor_that_is_there_is_told_with_what_it_says(tmp_path: Path) -> None:
    device_tree.laptop(tmp_path, celsius=61)
    found = {line.what: line for line in doctor.sensor_findings(tmp_path, tmp_path / "sys")}
    assert found["battery"].text == "plugged in, 80 %"
    assert found["heat"].text == "61 °C"
