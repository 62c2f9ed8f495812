"""How long ago somebody touched the computer: what the platforms answer, and the clock over it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sapo_swarm.node.governor import rules
from sapo_swarm.node.governor.rules import AGAIN_S, IDLE_LOOK_EVERY_S, IdleClock


def test_the_answers_of_the_platforms_are_read_as_seconds() -> None:
    assert rules.parse_dbus_idle("(uint64 61234,)\n") == 61.234
    assert rules.parse_dbus_idle("(uint32 0,)") == 0.0
    assert rules.parse_ioreg_idle('    |   "HIDIdleTime" = 2500000000\n    |   "HIDKind" = 1') == 2.5
    assert rules.parse_dbus_idle("") is None
    assert rules.parse_ioreg_idle("no such property") is None


def test_the_latest_touch_of_any_terminal_counts(tmp_path: Path) -> None:
    for name, touched in (("a", 100.0), ("b", 160.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (touched, touched))
    assert rules._since([tmp_path / "a", tmp_path / "b", tmp_path / "gone"], 200.0) == 40.0
    assert rules._since([], 200.0) is None


def test_a_touch_ahead_of_a_clock_that_was_set_back_does_not_count(tmp_path: Path) -> None:
    for name, touched in (("a", 100.0), ("b", 3700.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (touched, touched))
    assert rules._since([tmp_path / "a", tmp_path / "b"], 200.0) == 100.0
    assert rules._since([tmp_path / "b"], 200.0) is None


def test_the_way_that_saw_the_latest_touch_decides_and_silent_ways_are_asked_seldom() -> None:
    """A node that starts at login starts before the desktop, which would never be asked again."""
    asked: list[str] = []

    def way(name: str, answer: float | None) -> rules.IdleAsk:
        def ask() -> float | None:
            asked.append(name)
            return answer

        return ask

    now = 0.0
    clock = IdleClock([way("terminal", 90.0), way("desktop", 4.0), way("none", None)], lambda: now)
    assert clock.seconds() == 4.0
    now = 2.0
    assert clock.seconds() == 6.0, "between two looks the time goes on"
    now = IDLE_LOOK_EVERY_S
    assert clock.seconds() == 4.0
    assert asked == ["terminal", "desktop", "none", "terminal", "desktop"]
    asked.clear()
    now = AGAIN_S
    clock.seconds()
    assert asked == ["terminal", "desktop", "none"]


def test_this_machine_answers_or_says_that_it_cannot() -> None:
    began = time.time()
    answer = IdleClock().seconds()
    assert answer is None or 0 <= answer <= began
