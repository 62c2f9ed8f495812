"""What the dashboard in lines tells: the facts of the screens as sentences, charts as trends."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec
import pytest
from tests.support.scripted_feed import SILO, SWARM

from sapo_desktop.dashboard.history.run import RoundClock
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.panels import group_line
from sapo_desktop.linear import facts
from sapo_desktop.linear.facts import trend_sentence
from sapo_swarm.events import Event, FirstSuccess
from sapo_swarm.node.training_count import ROUNDS_ONLY
from sapo_swarm.types import Finish, Rollout

DRAWN = re.compile("[\u2500-\u259f\u25a0-\u25ff\u2800-\u28ff\x1b\r]")
"""Boxes, blocks, marks, braille, escape sequences, a cursor that goes back."""


def state_of(events: list[Event]) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def pages(events: list[Event]) -> list[str]:
    state, now = state_of(events), max(event.time for event in events)
    return [
        *facts.dashboard_facts(state, now),
        *facts.swarm_facts(state, now),
        *facts.rollout_facts(state),
        *facts.rollout_facts(state, 1),
        *facts.log_facts(state, now),
    ]


@pytest.mark.parametrize("events", [SILO, SWARM, []], ids=["alone", "in a swarm", "nothing yet"])
def test_no_line_draws_anything(events: list[Event]) -> None:
    lines = (
        pages(events)
        if events
        else facts.dashboard_facts(DashboardState(), 0.0) + facts.swarm_facts(DashboardState(), 0.0)
    )
    assert lines
    assert all(line and not DRAWN.search(line) and line == line.strip() for line in lines), lines


def test_the_facts_of_the_screens_are_told() -> None:
    alone, together = "\n".join(pages(SILO)), "\n".join(pages(SWARM))
    for fact in ("19.8 %", "+10.3", "binary_matrix from 15 to 32 %", "local 0.20, mean of 20 rounds", "2.9 s"):
        assert fact in alone, fact
    for fact in ("My share 17.9 %", "Uptake 37", "External share 50.0 %", "quiet-otter", "old-laptop", "First solved"):
        assert fact in together, fact
    state = state_of(SWARM)
    assert state.swarm is not None
    assert sum(bool(re.match(r"\d+\. .* groups, share", line)) for line in facts.swarm_facts(state, 0.0)) == len(
        state.swarm.peers
    )


@pytest.mark.parametrize(
    ("text", "finish", "reward", "told"),
    [
        ("I add. <answer>42</answer>", "stop", 1.0, "42"),
        ("I add 40 and 2.\n\\boxed{42}", "stop", 1.0, "42"),
        ('I add 40 and 2. {"answer": 42}', "stop", 1.0, "42"),
        ("I add 40 and 2.\n42\n", "stop", 1.0, "42"),
        ("I add.\n42", "length", 1.0, "42"),
        ("<think>40 and 2</think>\n42", "stop", 0.0, "42"),
        ("I add 40 and", "length", 0.0, "cut at the limit"),
        (" \n", "stop", 0.0, "no answer"),
    ],
)
def test_the_answer_of_a_group_is_shown_in_whatever_format_it_is(
    text: str, finish: Finish, reward: float, told: str
) -> None:
    newest = state_of(SILO).groups.last
    assert newest is not None
    rollouts = (Rollout(text, finish, reward), Rollout("<answer>7</answer>", "stop", 0.0))
    event = msgspec.structs.replace(newest, group=msgspec.structs.replace(newest.group, rollouts=rollouts))
    assert facts.group_sentence(event, ROUNDS_ONLY).endswith(f"best answer {told}")
    assert group_line(event, ROUNDS_ONLY, 120, UNICODE).plain.rstrip().endswith(f" {told}")


def test_a_group_in_full_has_every_attempt_with_its_verdict() -> None:
    state = state_of(SILO)
    newest = state.groups.last
    assert newest is not None
    lines = facts.rollout_facts(state, 1)
    verdicts = [line for line in lines if line.startswith("Attempt")]
    assert len(verdicts) == len(newest.group.rollouts)
    assert sum(" is right" in line for line in verdicts) == sum(one.reward >= 1 for one in newest.group.rollouts)
    assert "There are" in facts.rollout_facts(state, 999_999)[0]


def test_marks_and_log_lines_of_another_day_are_told_with_their_day() -> None:
    now = datetime(2026, 11, 27, 20).timestamp()
    seven, noon = datetime(2026, 11, 20, 7).timestamp(), datetime(2026, 11, 27, 12).timestamp()
    state = state_of([FirstSuccess(time=seven, round=3, task="bf"), FirstSuccess(time=noon, round=9, task="gcd")])
    assert [line[:25].strip() for line in facts.log_facts(state, now)] == [
        "2026-11-20 07:00:00 First",
        "12:00:00 First success at",
    ]
    marks = next(line for line in facts.dashboard_facts(state, now) if line.startswith("Marked"))
    assert marks.endswith("first solved at round 4, 2026-11-20 07:00:00; first solved at round 10, 12:00:00")


def risen(hours: float) -> tuple[Series, RoundClock]:
    """Forty rounds over so many hours; the figure goes from 0 to 0.39."""
    series, clock, seconds = Series(), RoundClock(), hours * 3600 / 40
    for place in range(40):
        series = series.append(place + 1, place / 100)
        clock = clock.finished(place + 1, 1e9 + (place + 1) * seconds, seconds)
    return series, clock


def test_a_chart_is_told_with_where_it_came_from() -> None:
    assert trend_sentence("Reward", *risen(0.1)).startswith(
        "Reward 0.29, mean of 20 rounds, up from 0.00 at the start; last 10 rounds: 0.30, "
    )
    assert "up from 0.09 an hour ago" in trend_sentence("Reward", *risen(2))
    assert "up from 0.29 a day ago" not in trend_sentence("Reward", *risen(2))
    assert trend_sentence("Share", *risen(2), share=True, smooth=1).startswith("Share 39.0 %, up from ")
    assert trend_sentence("Reward", Series(), RoundClock()) == "Reward: no value yet"
    steady = Series().append(1, 0.5).append(2, 0.5).append(3, 0.5)
    assert trend_sentence("Reward", steady, RoundClock()) == "Reward 0.50; the same in the last 3 rounds"
    assert "none" in trend_sentence("Reward", Series().append(1, 0.5).append(2, None).append(3, 0.5), RoundClock())
