"""Readings of this machine through psutil; None where the platform has no such sensor."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil

from sapo_swarm.node.governor.idle import IdleClock
from sapo_swarm.node.governor.limits import Readings


class Machine:
    """Reads the machine and this process tree. folder: whose disk is watched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._idle = IdleClock()

    def readings(self, idle: bool = False) -> Readings:
        """idle: ask when keyboard or mouse were last touched, too."""
        local = time.localtime()
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return Readings(
            on_battery=None if battery is None else not battery.power_plugged,
            celsius=self.celsius(),
            free_memory=psutil.virtual_memory().available,
            free_disk=shutil.disk_usage(self._folder).free,
            idle_s=self._idle.seconds() if idle else None,
            week_minute=(local.tm_wday * 24 + local.tm_hour) * 60 + local.tm_min,
        )

    def celsius(self) -> float | None:
        """The hottest processor sensor; None where there is none to read."""
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        for name in ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz"):
            if sensors.get(name):
                return float(max(s.current for s in sensors[name]))
        return None

    def usage(self) -> tuple[int, float]:
        """Resident bytes and CPU percent (100 = one core) of this process and its children."""
        memory, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        for child in self._process.children(recursive=True):
            try:
                memory += child.memory_info().rss
            except psutil.Error:
                continue
        return memory, cpu
