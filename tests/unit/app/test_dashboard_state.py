"""The reducer: the dashboard's picture is a pure function of the events."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.make_recordings import recording

from sapo_desktop.dashboard.state import DashboardState, NodeLink, apply_event
from sapo_desktop.dashboard.widgets.frame import status_summary
from sapo_swarm.events import (
    Event,
    GroupRecorded,
    LogLine,
    Phase,
    RoundFinished,
    RunStarted,
    StateChanged,
    Vitals,
    decode_event,
    encode_event,
)

SILO = list(recording("silo", 12, 3))
SWARM = list(recording("swarm", 12, 4))


def fold(events: list[Event], state: DashboardState | None = None) -> DashboardState:
    state = state or DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def facts(state: DashboardState) -> tuple[object, ...]:
    figures = state.figures
    return (
        state.rounds,
        state.tokens,
        [figures.reward_local.mean(i, 1) for i in range(len(figures.reward_local))],
        [event.seq for event in state.groups],
        [line.text for line in state.log],
        state.phases,
        state.sentence,
    )


def test_a_silo_run_ends_with_its_rounds_its_evaluation_and_no_external_reward() -> None:
    state = fold(SILO)
    assert state.rounds == 12
    assert state.silo
    assert state.figures.reward_external.empty
    assert not state.figures.reward_local.empty
    assert state.base is not None
    assert state.base.round == 0
    assert state.latest is not state.base
    assert state.phase is not None
    assert state.phases == ("questions", "generate")


def test_a_swarm_run_keeps_own_and_external_rewards_apart() -> None:
    state = fold(SWARM)
    own, external = state.figures.reward_local.tail_mean(12), state.figures.reward_external.tail_mean(12)
    assert own is not None
    assert external is not None
    assert external > own + 0.1
    assert state.figures.external_share.latest == pytest.approx(0.5)
    assert state.swarm is not None
    assert state.swarm.peers


@given(st.integers(0, len(SILO)))
@settings(max_examples=25, deadline=None)
def test_applying_an_event_leaves_the_old_state_as_it_was(place: int) -> None:
    old = fold(SILO[:place])
    before = facts(old)
    fold(SILO[place : place + 40], old)
    assert facts(old) == before


def test_the_same_events_give_the_same_picture_through_the_wire() -> None:
    assert facts(fold([decode_event(encode_event(event)) for event in SWARM])) == facts(fold(SWARM))


def test_a_new_run_starts_with_empty_charts_but_keeps_the_log() -> None:
    state = fold(SILO)
    assert isinstance(SILO[0], RunStarted)
    other = RunStarted(
        **{name: getattr(SILO[0], name) for name in SILO[0].__struct_fields__ if name != "run_id"}, run_id="other"
    )
    fresh = apply_event(state, other)
    assert fresh.rounds == 0
    assert fresh.figures.reward_local.empty
    assert len(fresh.log) > len(state.log)


def test_a_resumed_run_keeps_its_charts() -> None:
    state = fold(SILO)
    resumed = apply_event(state, SILO[0])
    assert resumed.rounds == 12
    assert not resumed.figures.reward_local.empty
    assert resumed.phase is None


def test_the_link_does_not_overwrite_what_the_node_said() -> None:
    state = apply_event(fold(SILO), NodeLink(False, "The node went away", 5.0))
    assert state.sentence == "Training"
    assert state.link is not None
    assert not state.link.connected


def test_memory_is_bounded_and_an_event_costs_the_same_after_ten_thousand_rounds() -> None:
    finished = next(event for event in SILO if isinstance(event, RoundFinished))
    group = next(event for event in SILO if isinstance(event, GroupRecorded))
    fields = {name: getattr(finished, name) for name in finished.__struct_fields__}
    state, costs = DashboardState(), []
    for block in range(10):
        started = time.perf_counter()
        for index in range(1000):
            state = apply_event(state, RoundFinished(**{**fields, "round": block * 1000 + index}))
            state = apply_event(state, group)
            state = apply_event(state, LogLine(level="info", text="a line"))
            state = apply_event(
                state,
                Vitals(
                    time=float(block * 1000 + index),
                    tokens_per_s=1.0,
                    rounds_per_hour=1.0,
                    memory=1,
                    cpu_percent=None,
                    celsius=None,
                ),
            )
        costs.append(time.perf_counter() - started)
    assert len(state.figures.reward_local) <= 4000
    assert len(state.groups) == 256
    assert len(state.log) == 1000
    assert min(costs[-3:]) < 4 * min(costs[:3])


def test_phases_of_a_round_collect_in_order_and_start_over_with_the_next() -> None:
    state = DashboardState()
    for name in ("questions", "generate"):
        state = apply_event(state, Phase(time=1.0, round=3, phase=name, fraction=0.5, eta_s=-1))  # type: ignore[arg-type]
    assert state.phases == ("questions", "generate")
    state = apply_event(state, Phase(time=2.0, round=4, phase="questions", fraction=0.0, eta_s=-1))
    assert state.phases == ("questions",)


def test_changes_of_state_are_logged_but_not_every_sentence_while_it_runs() -> None:
    state = DashboardState()
    state = apply_event(state, StateChanged(time=1.0, state="running", sentence="Training"))
    length = len(state.log)
    state = apply_event(state, StateChanged(time=2.0, state="running", sentence="Still training"))
    assert len(state.log) == length
    state = apply_event(state, StateChanged(time=3.0, state="paused", sentence="Paused: on battery", reason="battery"))
    assert state.log.newest(1)[0].text == "Paused: on battery"
    assert state.since == 3.0


def test_a_node_that_starts_again_is_not_gone_though_the_last_one_said_that_it_stopped() -> None:
    left = fold([*SILO, StateChanged(time=1.0, state="stopped", sentence="Stopped after round 5.")])
    again = apply_event(left, NodeLink(False, "The node is starting again", 5.0, starting=True))
    assert not again.gone
    assert status_summary(again, 9.0)[1:] == ("The node is starting again", 4.0)
