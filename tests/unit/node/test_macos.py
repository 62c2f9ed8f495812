"""macOS' thermal pressure from what its programs print, in every form that is known of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.node.governor.rules import (
    LIMITS,
    MACOS_LOOK_EVERY_S,
    NOTIFIED,
    ThermalPressure,
    parse_notifyutil_level,
    parse_pmset_level,
)

QUIET = """Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
Note: No CPU power status has been recorded
"""
INTEL = """2026-10-05 17:10:00 +0300 CPU Power notify
\tCPU_Scheduler_Limit \t= {}
\tCPU_Available_CPUs \t= 4
\tCPU_Speed_Limit \t= {}
"""


@pytest.mark.parametrize("level", range(5))
def test_the_notified_level_is_read(level: int) -> None:
    assert parse_notifyutil_level(f"com.apple.system.thermalpressurelevel {level}\n") == level


@pytest.mark.parametrize("reply", ["", "com.apple.system.thermalpressurelevel 9\n", "notifyutil: failed\n", "x 1 2"])
def test_another_reply_tells_no_level(reply: str) -> None:
    assert parse_notifyutil_level(reply) is None


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        (QUIET, 0),
        (INTEL.format(100, 100), 0),
        (INTEL.format(100, 82), 1),
        (INTEL.format(100, 72), 2),
        (INTEL.format(40, 100), 3),
        (INTEL.format(100, 0), 4),
        (QUIET + INTEL.format(100, 62), 2),
        ("pmset: unknown argument\n", None),
        ("", None),
    ],
)
def test_where_no_level_is_notified_the_processors_limits_tell_it(reply: str, level: int | None) -> None:
    assert parse_pmset_level(reply) == level


@given(st.text())
def test_whatever_the_programs_print_the_level_stays_in_its_bounds(reply: str) -> None:
    for found in (parse_notifyutil_level(reply), parse_pmset_level(reply)):
        assert found is None or 0 <= found <= 4


def test_it_is_asked_seldom_first_by_notification_and_on_macos_only() -> None:
    asked, replies, now = list[Sequence[str]](), {NOTIFIED: "com.apple.system.thermalpressurelevel 2\n"}, 0.0

    def ask(command: Sequence[str]) -> str:
        asked.append(command)
        return replies.get(tuple(command), "")

    sensor = ThermalPressure("darwin", ask, lambda: now)
    assert sensor.read() == sensor.read() == 2
    assert asked == [NOTIFIED]
    now = MACOS_LOOK_EVERY_S
    replies.clear()
    replies[LIMITS] = INTEL.format(100, 100)
    assert sensor.read() == 0
    assert asked == [NOTIFIED, NOTIFIED, LIMITS]
    assert ThermalPressure("linux", ask, lambda: now).read() is None
    assert len(asked) == 3
