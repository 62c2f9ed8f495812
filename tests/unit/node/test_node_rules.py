"""The pure rules of a node: requests, plans."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.config import RunConfig
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.governor.run_control import (
    HOLDERS,
    VERBS,
    BadCommand,
    RunRequests,
    apply_command,
    find_obstacle,
    format_moment,
    pending_note,
    round_done,
)
from sapo_swarm.node.round_phases import candidate_refs, round_seed
from sapo_swarm.tasks.catalogue import HELD_OUT_SEED, HELD_OUT_SIZE, TRAIN_LIMIT, held_out, is_train


def test_a_snooze_says_until_what_time() -> None:
    wall = 1_790_000_000.0
    _, sentence = find_obstacle(apply_command(RunRequests(), "snooze", 900, 50.0), 60.0, wall) or ("", "")
    until = time.strftime("%H:%M", time.localtime(wall + 890))
    assert sentence == f"Paused until {until} · space goes on now"


def test_every_obstacle_says_how_to_go_on() -> None:
    for verb in ("pause", "snooze", "hold"):
        reason, sentence = find_obstacle(apply_command(RunRequests(), verb, 600, 0.0), 1.0, 0.0) or ("", "")
        assert reason
        assert "space" in sentence


def test_a_person_s_pause_outlasts_running_anyway() -> None:
    requests = apply_command(apply_command(RunRequests(), "run_anyway", 3600, 0.0), "pause", 0, 1.0)
    assert find_obstacle(requests, 2.0, 0.0) is not None


def test_finishing_pauses_after_the_round_and_not_before() -> None:
    requests = apply_command(RunRequests(), "finish", 0, 0.0)
    assert find_obstacle(requests, 1.0, 0.0) is None
    assert find_obstacle(round_done(requests), 1.0, 0.0) is not None


@pytest.mark.parametrize("asked", ["", "pause", "snooze", "finish", "stop"])
def test_what_was_asked_for_before_or_while_the_node_was_held_is_asked_for_after_it(asked: str) -> None:
    wanted = apply_command(RunRequests(), asked, 600, 0.0) if asked else RunRequests()
    before = apply_command(apply_command(wanted, "hold", 0, 1.0), "release", 0, 2.0)
    held = apply_command(RunRequests(), "hold", 0, 1.0)
    while_ = apply_command(apply_command(held, asked, 600, 0.0) if asked else held, "release", 0, 2.0)
    assert before == while_ == wanted
    assert find_obstacle(held, 2.0, 0.0) is not None


def test_a_hold_that_is_not_renewed_ends_by_itself() -> None:
    """Whoever asked for it may be gone."""
    held = apply_command(RunRequests(), "hold", 60, 0.0, holder=7)
    assert find_obstacle(held, 59.0, 0.0) is not None
    assert find_obstacle(held, 61.0, 0.0) is None
    assert "once the model is open" in pending_note(held, "starting", 59.0)
    assert pending_note(held, "starting", 61.0) == ""
    snoozed = apply_command(RunRequests(), "snooze", 60, 0.0)
    assert "once the model is open" in pending_note(snoozed, "starting", 59.0)
    assert pending_note(snoozed, "starting", 61.0) == "", "the pause is over before the model is open"
    assert find_obstacle(apply_command(held, "renew", 60, 50.0, holder=7), 109.0, 0.0) is not None
    assert find_obstacle(apply_command(held, "renew", 60, 90.0, holder=7), 91.0, 0.0) is not None, (
        "as after the machine slept"
    )


def test_a_node_is_held_until_the_last_of_its_holders_releases_it() -> None:
    both = apply_command(apply_command(RunRequests(), "hold", 60, 0.0, holder=7), "hold", 60, 1.0, holder=8)
    one = apply_command(both, "release", 0, 2.0, holder=7)
    assert find_obstacle(one, 3.0, 0.0) is not None
    assert apply_command(one, "release", 0, 4.0, holder=8) == RunRequests()
    for number in range(100):
        both = apply_command(both, "hold", 60, 5.0, holder=number)
    assert len(both.held) == HOLDERS, "those that were killed take no memory for ever"


@pytest.mark.parametrize("verb", ["resume", "run_anyway"])
def test_a_holder_does_not_take_the_persons_word_back(verb: str) -> None:
    """It renews what it knows nothing of the end of."""
    free = apply_command(apply_command(RunRequests(), "hold", 60, 0.0, holder=7), verb, 0, 1.0)
    assert find_obstacle(apply_command(free, "renew", 60, 20.0, holder=7), 21.0, 0.0) is None


@pytest.mark.parametrize("verb", ["resume", "run_anyway"])
def test_a_held_node_goes_on_when_the_person_says_so(verb: str) -> None:
    assert find_obstacle(apply_command(apply_command(RunRequests(), "hold", 0, 0.0), verb, 0, 1.0), 2.0, 0.0) is None


def test_a_wrong_command_is_named() -> None:
    with pytest.raises(BadCommand, match="dance"):
        apply_command(RunRequests(), "dance", 0, 0.0)
    with pytest.raises(BadCommand, match="30 days"):
        apply_command(RunRequests(), "pause", 1e9, 0.0)
    assert set(VERBS) >= {"pause", "resume", "stop"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (720, "12 min"), (4800, "1 h 20 min"), (604_700, "6 d 23 h")]
)
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


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
    assert format_moment(now + 3600, now) == "23:00"
    assert format_moment(now + 4 * 3600, now) == "Tue 02:00"
    assert format_moment(now + 20 * 86400, now) == "Sun 13 Dec, 22:00"
    _, sentence = find_obstacle(apply_command(RunRequests(), "pause", 4 * 3600, 0.0), 0.0, now) or ("", "")
    assert sentence == "Paused until Tue 02:00 · space goes on now"


def test_what_was_asked_for_and_has_not_happened_is_said() -> None:
    assert "after this round" in pending_note(apply_command(RunRequests(), "finish", 0, 0.0), "finishing")
    assert "stops" in pending_note(apply_command(RunRequests(), "stop", 0, 0.0), "running")
    assert "once the model is open" in pending_note(apply_command(RunRequests(), "pause", 0, 0.0), "starting")
    assert (
        pending_note(RunRequests(), "running")
        == pending_note(apply_command(RunRequests(), "stop", 0, 0.0), "stopped")
        == ""
    )
