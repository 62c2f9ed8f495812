"""What the person allows a node: visible switches, and presets that do nothing but set them. No coordinator can change one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.node.governor.schedule import parse_schedule


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the person allows. Temperatures in degrees Celsius, sizes in GB, shares in percent."""

    pause_on_battery: Annotated[bool, Meta(description="Pause while the laptop runs on battery")] = True
    slow_on_battery: Annotated[bool, Meta(description="On battery work slower, where it does not pause")] = True
    min_charge: Annotated[
        float, Meta(description="Pause below this charge of the battery, in percent; 0 = never", ge=0, le=100)
    ] = 30.0
    slow_celsius: Annotated[float, Meta(description="Slower above this CPU temperature; 0 = never", ge=0, le=120)] = (
        82.0
    )
    max_celsius: Annotated[float, Meta(description="Pause above this CPU temperature; 0 = never", ge=0, le=120)] = 90.0
    slow_thermal_pressure: Annotated[
        int,
        Meta(
            description="Slower from this thermal pressure on, pause from the next: 1 moderate, 2 heavy, 3 trapping, 4 sleeping; "
            "0 = never (macOS)",
            ge=0,
            le=4,
        ),
    ] = 2
    slow_fan_rpm: Annotated[
        float, Meta(description="Slower above this fan speed, in turns a minute; 0 = never (Linux)", ge=0, le=30000)
    ] = 0.0
    slow_memory_wait: Annotated[
        float,
        Meta(
            description="Slower while programs wait for memory more than this percent of the time (Linux), pause above four "
            "times that, at most 50; 0 = never",
            ge=0,
            le=100,
        ),
    ] = 10.0
    pause_lid_closed: Annotated[bool, Meta(description="Pause while a laptop's lid is closed (Linux)")] = False
    pause_on_metered: Annotated[
        bool, Meta(description="In a swarm pause on a network that is paid by volume (NetworkManager)")
    ] = False
    max_network_mb_a_day: Annotated[
        float,
        Meta(
            description="Exchange with a swarm no more than this a day, in MB sent and received; training goes on alone "
            "then; 0 = no cap",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    slow_other_load: Annotated[
        float,
        Meta(description="Slower while other programs use more than this percent of the CPU; 0 = never", ge=0, le=100),
    ] = 0.0
    min_free_memory: Annotated[
        float,
        Meta(description="Pause below this much free memory, in GB; smaller batches below twice that", ge=0, le=1e6),
    ] = 0.5
    max_memory: Annotated[
        float,
        Meta(
            description="A node gets no more memory than this, in GB; 0 = no wall. From its next start on",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    min_free_disk: Annotated[float, Meta(description="Pause below this much free disk, in GB", ge=0, le=1e6)] = 0.5
    schedule: Annotated[
        str, Meta(description="Work only in these hours, such as mon-fri 18:00-08:00, sat-sun; empty = always")
    ] = ""
    pause_when_active: Annotated[bool, Meta(description="Pause while somebody uses keyboard or mouse")] = False
    slow_when_active: Annotated[
        bool, Meta(description="Half the threads while somebody uses keyboard or mouse, where it does not pause")
    ] = False
    away_minutes: Annotated[
        float, Meta(description="Minutes without a touch until the person counts as away", ge=1, le=1440)
    ] = 5.0
    keep_awake: Annotated[
        bool, Meta(description="Keep the computer from going to sleep by itself while it works and is plugged in")
    ] = False
    nice: Annotated[
        int, Meta(description="How far the node steps back for other programs (Unix niceness)", ge=0, le=19)
    ] = 10

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence when the schedule is none."""
        parse_schedule(self.schedule)


_ECO: Mapping[str, bool | float | int] = {
    "pause_on_battery": True,
    "slow_on_battery": True,
    "min_charge": 50.0,
    "slow_celsius": 70.0,
    "max_celsius": 80.0,
    "slow_thermal_pressure": 1,
    "slow_fan_rpm": 3000.0,
    "slow_memory_wait": 5.0,
    "pause_lid_closed": True,
    "pause_on_metered": True,
    "slow_other_load": 40.0,
    "min_free_memory": 1.0,
    "pause_when_active": True,
    "slow_when_active": True,
    "away_minutes": 10.0,
    "nice": 19,
}
_BALANCED: Mapping[str, bool | float | int] = {name: getattr(Limits(), name) for name in _ECO}
PRESETS: Mapping[str, Mapping[str, bool | float | int]] = {
    "eco": _ECO,
    "balanced": _BALANCED,
    "full": {
        **_BALANCED,
        "pause_on_battery": False,
        "slow_celsius": 0.0,
        "max_celsius": 95.0,
        "slow_thermal_pressure": 3,
        "slow_memory_wait": 20.0,
        "nice": 0,
    },
}
"""Preset -> the switches that it sets. Schedule, disk, data and keep_awake are the person's alone; balanced is the default."""
