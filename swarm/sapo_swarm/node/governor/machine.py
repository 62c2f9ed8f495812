"""Readings of the machine: from psutil if it serves, or from Linux's own files for tests and what psutil lacks. None: not
available."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import psutil

from sapo_swarm.node.clock import week_minute
from sapo_swarm.node.governor import sensors as device_files
from sapo_swarm.node.governor.sensors import SYSFS, IdleClock, MachineReadings, ThermalPressure

LINUX = sys.platform.startswith("linux")


class PowerMonitor:
    """Mains and batteries. sysfs: Linux' device tree."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs

    def read(self) -> tuple[bool | None, float | None]:
        """(on battery, charge in percent); None for what this machine does not have or report."""
        if LINUX:
            return device_files.read_power_supplies(self._sysfs)
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if battery is None:
            return None, None
        plugged = battery.power_plugged
        return None if plugged is None else not plugged, float(battery.percent)


class MachineMonitor:
    """Reads the machine and this process tree. folder: whose disk is watched. sysfs: Linux' device tree."""

    def __init__(self, folder: Path, sysfs: Path = SYSFS) -> None:
        self._folder, self._sysfs = folder, sysfs
        self._power = PowerMonitor(sysfs)
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._idle, self._pressure = IdleClock(), ThermalPressure()

    def readings(self, idle: bool = False) -> MachineReadings:
        """idle: also ask when keyboard or mouse were last touched."""
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
        if LINUX:
            return device_files.read_cpu_celsius(self._sysfs)
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        temperatures = [reading.current for readings in sensors.values() for reading in readings]
        return float(max(temperatures)) if temperatures else None

    def usage(self) -> tuple[int, float]:
        """Resident bytes and CPU percent (100 = one core) of this process and its children."""
        memory, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        for child in self._process.children(recursive=True):
            try:
                memory += child.memory_info().rss
            except psutil.Error:
                continue
        return memory, cpu
