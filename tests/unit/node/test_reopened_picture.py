"""What the dashboard shows of a model that is opened again: tasks once solved, and round times without pauses."""

from __future__ import annotations

import msgspec
from tests.support.records import finished, opened

from sapo_desktop.dashboard.state import DashboardState, apply_event


def test_tasks_that_were_solved_long_ago_are_solved_after_reopening() -> None:
    """Their groups have left the tail of the journal that a dashboard reads."""
    started = msgspec.structs.replace(opened(5000), solved=("bf", "arc_1d"))
    assert apply_event(DashboardState(), started).solved == {"bf", "arc_1d"}


def test_a_pause_between_two_rounds_is_no_round_time() -> None:
    state = apply_event(apply_event(DashboardState(), opened(0)), msgspec.structs.replace(finished(0), time=100.0))
    state = apply_event(state, msgspec.structs.replace(finished(1, seconds=2.0), time=9000.0))
    assert state.round_seconds == 3.0
