"""What the governor is told of the machine."""

from __future__ import annotations

import msgspec


class Readings(msgspec.Struct, frozen=True):
    """The machine at one moment; None where it cannot be read. memory and disk in bytes.

    idle_s: seconds since somebody touched keyboard or mouse. week_minute: minutes since Monday 00:00, local time.
    charge: of the battery, in percent. other_load: percent of all cores that other programs use. fan_rpm: of the fastest fan.
    memory_wait: percent of the time in which a program waits for memory. metered: the network is paid by volume.
    thermal_pressure: of macOS, 0 (nominal) to 4; see macos.NAMES.
    """

    on_battery: bool | None = None
    celsius: float | None = None
    free_memory: int | None = None
    free_disk: int | None = None
    idle_s: float | None = None
    week_minute: int | None = None
    charge: float | None = None
    other_load: float | None = None
    fan_rpm: float | None = None
    memory_wait: float | None = None
    lid_closed: bool | None = None
    metered: bool | None = None
    thermal_pressure: int | None = None
