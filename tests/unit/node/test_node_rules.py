"""The pure rules of a node: limits, requests, plans."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.config import RunConfig
from sapo_swarm.node.governor import commands
from sapo_swarm.node.governor.commands import (
    BadCommand,
    Requests,
    command,
    duration,
    moment,
    obstacle,
    pending,
    round_done,
)
from sapo_swarm.node.governor.limits import DWELL_S, Hold, Limits, Readings, decide
from sapo_swarm.node.round.plan import candidate_refs, round_seed
from sapo_swarm.tasks.seeds import HELD_OUT_SEED, HELD_OUT_SIZE, TRAIN_LIMIT, held_out, is_train

GIB = 2**30


def test_heat_holds_until_well_below_the_limit() -> None:
    limits = Limits(max_celsius=90)
    held = decide(limits, Readings(celsius=91), None, 0.0)
    assert held is not None
    assert decide(limits, Readings(celsius=85), held, 100.0) is not None
    assert decide(limits, Readings(celsius=80), held, 100.0) is None


def test_a_hold_lasts_its_dwell_time_even_when_its_reason_is_gone_at_once() -> None:
    held = decide(Limits(), Readings(on_battery=True), None, 0.0)
    assert held is not None
    assert decide(Limits(), Readings(on_battery=False), held, DWELL_S - 1) == held
    assert decide(Limits(), Readings(on_battery=False), held, DWELL_S + 1) is None


def test_what_cannot_be_read_never_holds() -> None:
    assert decide(Limits(), Readings(), None, 0.0) is None


@given(st.floats(0, 120), st.floats(0, 64), st.floats(0, 64))
def test_limits_that_are_off_never_hold(celsius: float, memory: float, disk: float) -> None:
    off = Limits(pause_on_battery=False, max_celsius=0, min_free_memory=0, min_free_disk=0)
    assert decide(off, Readings(True, celsius, int(memory * GIB), int(disk * GIB)), None, 0.0) is None


def test_out_of_hours_it_holds_and_says_until_when() -> None:
    limits = Limits(schedule="mon-fri 18:00-08:00, sat-sun")
    monday = 12 * 60
    held = decide(limits, Readings(week_minute=monday), None, 0.0)
    assert held is not None
    assert (held.code, "until Mon 18:00" in held.sentence) == ("schedule", True)
    assert decide(limits, Readings(week_minute=monday + 6 * 60), held, 3600.0) is None
    assert decide(Limits(), Readings(week_minute=monday), None, 0.0) is None


def test_a_touch_holds_until_the_person_was_away_for_a_while() -> None:
    limits = Limits(pause_when_active=True, away_minutes=5)
    held = decide(limits, Readings(idle_s=2.0), None, 0.0)
    assert held is not None
    assert held.code == "person_active"
    assert decide(limits, Readings(idle_s=200.0), held, 200.0) is not None
    assert decide(limits, Readings(idle_s=301.0), held, 301.0) is None
    assert decide(limits, Readings(idle_s=200.0), None, 600.0) is None, "an old touch starts no pause"


def test_a_person_is_nobody_s_business_unless_asked_for() -> None:
    assert decide(Limits(), Readings(idle_s=0.0), None, 0.0) is None
    assert decide(Limits(pause_when_active=True), Readings(), None, 0.0) is None


def test_a_snooze_says_until_what_time() -> None:
    wall = 1_790_000_000.0
    _, sentence = obstacle(command(Requests(), "snooze", 900, 50.0), 60.0, wall) or ("", "")
    until = time.strftime("%H:%M", time.localtime(wall + 890))
    assert sentence == f"Paused until {until} · space goes on now"


def test_every_obstacle_says_how_to_go_on() -> None:
    for verb in ("pause", "snooze"):
        reason, sentence = obstacle(command(Requests(), verb, 600, 0.0), 1.0, 0.0) or ("", "")
        assert reason
        assert "space" in sentence


def test_running_anyway_overrides_a_hold_for_a_limited_time() -> None:
    held = Requests(hold=Hold("battery", "Paused: on battery", 0.0))
    requests = command(held, "run_anyway", 3600, 0.0)
    assert obstacle(requests, 3599.0, 0.0) is None
    assert obstacle(requests, 3601.0, 0.0) == ("battery", "Paused: on battery")


def test_a_person_s_pause_outlasts_running_anyway() -> None:
    requests = command(command(Requests(), "run_anyway", 3600, 0.0), "pause", 0, 1.0)
    assert obstacle(requests, 2.0, 0.0) is not None


def test_finishing_pauses_after_the_round_and_not_before() -> None:
    requests = command(Requests(), "finish", 0, 0.0)
    assert obstacle(requests, 1.0, 0.0) is None
    assert obstacle(round_done(requests), 1.0, 0.0) is not None


def test_a_wrong_command_is_named() -> None:
    with pytest.raises(BadCommand, match="dance"):
        command(Requests(), "dance", 0, 0.0)
    with pytest.raises(BadCommand, match="30 days"):
        command(Requests(), "pause", 1e9, 0.0)
    assert set(commands.VERBS) >= {"pause", "resume", "stop"}


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (720, "12 min"), (4800, "1 h 20 min")])
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_round_is_planned_alike_after_a_resume_and_unlike_on_another_node() -> None:
    config = RunConfig(seed=3)
    first, again, other = (
        list(itertools.islice(candidate_refs(config, key, "silo", 12), 8)) for key in ("a", "a", "b")
    )
    assert first == again
    assert not set(first) & set(other)


def test_tasks_are_drawn_uniformly_with_replacement() -> None:
    config = RunConfig()
    drawn = Counter(r.dataset for n in range(400) for r in itertools.islice(candidate_refs(config, "k", "s", n), 9))
    assert set(drawn) == set(config.tasks)
    assert all(300 < count < 500 for count in drawn.values())


@given(st.integers(0, 10**6), st.integers(0, HELD_OUT_SIZE - 1))
def test_no_training_seed_reaches_a_held_out_item(round_number: int, index: int) -> None:
    ref = next(candidate_refs(RunConfig(seed=round_number), "node", "swarm", round_number))
    assert is_train(ref)
    evaluated = held_out("bf", "paper", index)
    assert not is_train(evaluated)
    assert abs(ref.seed - evaluated.seed) >= HELD_OUT_SIZE
    assert HELD_OUT_SEED + HELD_OUT_SIZE < 2**32
    assert TRAIN_LIMIT + HELD_OUT_SIZE <= HELD_OUT_SEED


def test_a_seed_differs_by_node_run_round_and_purpose() -> None:
    seeds = {round_seed(k, s, r, p) for k in "ab" for s in (0, 1) for r in (0, 1) for p in ("generate", "update")}
    assert len(seeds) == 16


def test_a_pause_that_ends_on_another_day_names_the_day() -> None:
    now = time.mktime((2026, 11, 23, 22, 0, 0, 0, 0, -1))
    assert moment(now + 3600, now) == "23:00"
    assert moment(now + 4 * 3600, now) == "Tue 02:00"
    assert moment(now + 20 * 86400, now) == "Sun 13 Dec, 22:00"
    _, sentence = obstacle(command(Requests(), "pause", 4 * 3600, 0.0), 0.0, now) or ("", "")
    assert sentence == "Paused until Tue 02:00 · space goes on now"


def test_what_was_asked_for_and_has_not_happened_is_said() -> None:
    assert "after this round" in pending(command(Requests(), "finish", 0, 0.0), "finishing")
    assert "stops" in pending(command(Requests(), "stop", 0, 0.0), "running")
    assert "once the model is open" in pending(command(Requests(), "pause", 0, 0.0), "starting")
    assert pending(Requests(), "running") == pending(command(Requests(), "stop", 0, 0.0), "stopped") == ""
