"""What the dashboard says of a round's stage."""

from __future__ import annotations

import msgspec
from tests.fixtures.make_recordings import recording

from sapo_desktop.dashboard.look import UNICODE, stage_words
from sapo_desktop.dashboard.screens.rollouts import detail as rollouts_detail
from sapo_desktop.dashboard.screens.swarm import screen as swarm_screen
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets import panels
from sapo_swarm.events import Event, GroupRecorded, RoundFinished, RunStarted, SwarmUpdated


def fold(events: list[Event]) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def test_what_a_stage_did_stands_beside_the_round_and_on_the_screen_of_the_swarm() -> None:
    finished = next(event for event in recording("swarm", 2, 1) if isinstance(event, RoundFinished))
    figures = {"stage_attempted": 3.0, "stage_dead": 7.0, "stage_hinted": 2.0, "stage_revived": 1.0}
    started = next(event for event in recording("swarm", 1, 1) if isinstance(event, RunStarted))
    last = msgspec.structs.replace(finished, figures=figures, external_wanted=0)
    news = SwarmUpdated(
        **{"coordinator": "c", "connected": True, "sentence": "s", "window": 60.0, "share": 0.1, "uptake": 1},
        **{
            "external_share": 0.1,
            "nodes": 2,
            "rounds_per_s": 0.1,
            "made": 4,
            "accepted": 4,
            "rejected": {},
            "refused": {},
        },
    )
    state = fold([started, news, last])
    said = "all attempts had failed at 2 that others solved: 1 solved with a hint"
    assert said in panels.now_panel(state, 0.0, 80, 12, UNICODE).plain
    assert said in swarm_screen.exchange_summary(state, 0.0, 100, 12, UNICODE).plain
    assert stage_words({"stage_attempted": 4.0, "stage_corrected": 1.0}).startswith("1 of 4 wrong attempts corrected")
    assert stage_words({"stage_attempted": 0.0, "stage_hinted": 0.0}) == stage_words({}) == ""


def test_a_group_that_was_generated_with_a_hint_says_so() -> None:
    group = next(event for event in recording("silo", 1, 1) if isinstance(event, GroupRecorded))
    hinted = msgspec.structs.replace(group, group=msgspec.structs.replace(group.group, stage="relay/shown"))
    assert "local, generated again with a hint of others" in rollouts_detail.group_details(hinted, UNICODE).plain
