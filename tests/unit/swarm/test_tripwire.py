"""The held-out tripwire's rules: luck never trips it, harm does, and the journal alone says where things stand."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.records import opened

from sapo_swarm.evaluation import ItemResult
from sapo_swarm.events import Evaluated, ExternalSwitched, RunStarted
from sapo_swarm.sapo.held_out_tripwire import (
    FALL,
    STEPS,
    SUSPICION,
    HeldOut,
    TripwireState,
    Verdict,
    closer_look,
    fall_evidence,
    in_common,
    looked_at,
    mean_pass_rate,
    update_tripwire,
    watch_of,
)
from sapo_swarm.types import TaskRef

ITEMS, TOLERANCE = 144, 0.25


def evaluation(round_: int, rate: float, items: int = ITEMS) -> Evaluated:
    return Evaluated(
        round=round_,
        temperature=1.0,
        items=items,
        pass_at_1=rate,
        low=0.0,
        high=1.0,
        delta=None,
        delta_low=None,
        delta_high=None,
        tasks=(),
        seconds=1.0,
    )


@functools.cache
def answer(index: int, right: bool) -> ItemResult:
    """One sample of an item."""
    return ItemResult(TaskRef("bf", "starter", index), (right,), (True,), (False,))


def answers(right: np.ndarray) -> list[ItemResult]:
    return [answer(index, bool(yes)) for index, yes in enumerate(right)]


def tripped(round_: int = 50) -> ExternalSwitched:
    return ExternalSwitched(round=round_, taking=False, by="tripwire", sentence="Off.", restored=25)


def test_the_best_result_is_remembered_and_a_fall_is_suspect() -> None:
    watch = watch_of([evaluation(0, 0.1), evaluation(25, 0.4), evaluation(50, 0.38)], ITEMS, TOLERANCE)
    assert watch.best == HeldOut(25, 0.4, ITEMS)
    assert watch.suspect is None
    watch = update_tripwire(watch, evaluation(75, 0.15), ITEMS, TOLERANCE)
    assert watch.suspect == HeldOut(75, 0.15, ITEMS)
    assert update_tripwire(watch, evaluation(100, 0.41), ITEMS, TOLERANCE).suspect is None


@pytest.mark.parametrize(
    ("best", "now", "items", "suspicious"),
    [
        (0.40, 0.10, 144, True),
        (0.40, 0.38, 100_000, False),  # certain, and little
        (0.40, 0.10, 4, False),  # a lot, and chance explains it
        (0.02, 0.00, 144, False),
        (0.25, 5 / 96, 96, True),  # the attack of issue 26: it was said to stand for nothing
    ],
)
def test_a_fall_must_be_large_and_more_than_chance(best: float, now: float, items: int, suspicious: bool) -> None:
    found = fall_evidence(HeldOut(25, best, items), HeldOut(50, now, items), TOLERANCE)
    assert (found > SUSPICION) is suspicious


def session(*tasks: str, held_out: str = "") -> RunStarted:
    return msgspec.structs.replace(opened(0), tasks=tasks, held_out=held_out)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (session("bf", held_out="a"), session("bf", held_out="a"), True),
        (session("bf", held_out="a"), session("bf", held_out="b"), False),  # another preset
        (session("bf"), session("bf", held_out="a"), True),  # the first by a version that did not name its questions
    ],
)
def test_a_session_with_other_questions_starts_without_a_mark(
    first: RunStarted, second: RunStarted, same: bool
) -> None:
    """What was decided about groups of others holds all the same."""
    watch = watch_of([first, evaluation(25, 0.4), tripped(), evaluation(75, 0.2), second], ITEMS, TOLERANCE)
    assert (watch.best is not None) is same
    assert (watch.taking, watch.trips, watch.restored, watch.sentence) == (False, 1, 25, "Off.")
    low = update_tripwire(watch, evaluation(100, 0.1), ITEMS, TOLERANCE)
    assert low.suspect is None
    assert low.best == (watch.best if same else HeldOut(100, 0.1, ITEMS))


def test_evidence_adds_up_over_evaluations_and_a_good_one_takes_it_back() -> None:
    watch = watch_of([evaluation(25, 0.3)], ITEMS, TOLERANCE)
    for _ in range(2):
        watch = update_tripwire(watch, evaluation(50, 0.25), ITEMS, TOLERANCE)
        assert watch.suspect is None
    low = update_tripwire(watch, evaluation(75, 0.22), ITEMS, TOLERANCE)
    assert low.evidence > watch.evidence
    assert update_tripwire(low, evaluation(75, 0.30), ITEMS, TOLERANCE).evidence == 0.0
    assert update_tripwire(watch, evaluation(75, 0.1), ITEMS, 0.0).suspect is None, "switched off"


def test_results_on_other_questions_say_nothing() -> None:
    watch = watch_of([evaluation(25, 0.4), evaluation(50, 0.0, items=ITEMS + 9)], ITEMS, TOLERANCE)
    assert (watch.best, watch.suspect) == (HeldOut(25, 0.4, ITEMS), None)


def test_a_regular_evaluation_counts_though_some_items_do_not_regenerate() -> None:
    asked = [
        msgspec.structs.replace(evaluation(n, rate, items=ITEMS - 2), asked=ITEMS) for n, rate in ((25, 0.4), (50, 0.1))
    ]
    watch = watch_of(asked, ITEMS, TOLERANCE)
    assert watch.best == HeldOut(25, 0.4, ITEMS - 2)
    assert watch.suspect is not None
    other = msgspec.structs.replace(evaluation(75, 0.9), asked=ITEMS + 2)
    assert update_tripwire(watch, other, ITEMS, TOLERANCE) == watch, "other questions, of which as many regenerate"
    few = msgspec.structs.replace(evaluation(75, 1.0, items=ITEMS // 2 - 1), asked=ITEMS)
    assert update_tripwire(watch, few, ITEMS, TOLERANCE) == watch, "too few to be the best"


def test_a_closer_look_compares_what_both_sides_were_asked() -> None:
    results = answers(np.arange(9) < 5)
    assert in_common(results[1:], results[:-1]) == (results[1:-1], results[1:-1])


def test_a_node_that_takes_nothing_suspects_nothing_until_the_person_takes_again() -> None:
    watch = watch_of([evaluation(25, 0.4), tripped()], ITEMS, TOLERANCE)
    assert (watch.taking, watch.trips, watch.restored, watch.sentence) == (False, 1, 25, "Off.")
    watch = update_tripwire(watch, evaluation(75, 0.1), ITEMS, TOLERANCE)
    assert watch.suspect is None
    watch = update_tripwire(
        watch, ExternalSwitched(round=80, taking=True, by="person", sentence="On."), ITEMS, TOLERANCE
    )
    assert (watch.taking, watch.trips, watch.sentence) == (True, 1, "")
    assert update_tripwire(watch, evaluation(100, 0.1), ITEMS, TOLERANCE).suspect is not None


def test_the_closer_look_needs_a_large_and_certain_loss() -> None:
    count = 2304
    right = np.arange(count) < 960
    assert closer_look(answers(right), answers(right & (np.arange(count) % 3 == 0)), TOLERANCE) == "harm"
    assert closer_look(answers(right), answers(right), TOLERANCE) == "open", "nothing changed hands"
    assert closer_look(answers(right), answers(right & (np.arange(count) % 6 != 0)), TOLERANCE) == "open", (
        "a sixth only"
    )
    assert closer_look(answers(right), answers(~right), TOLERANCE) == "chance", "better"
    assert closer_look(answers(right), answers(right & (np.arange(count) % 3 == 0)), 0.0) == "chance"
    few = right[:20], right[:20] & (np.arange(20) % 3 == 0)
    assert closer_look(answers(few[0]), answers(few[1]), TOLERANCE) == "open", "too few to be sure"
    with pytest.raises(ValueError, match="same questions"):
        closer_look(answers(right), answers(right)[1:], TOLERANCE)


def test_where_no_more_can_be_asked_an_exact_test_decides_and_needs_a_large_and_certain_loss_all_the_same() -> None:
    """The held-out rows of a small task of one's own: Wald's test needs 38 lost ones."""
    right = np.arange(20) < 14
    none, most, fewer = right & False, right & (np.arange(20) >= 10), right & (np.arange(20) >= 2)
    assert closer_look(answers(right), answers(none), TOLERANCE) == "open"
    assert closer_look(answers(right), answers(none), TOLERANCE, last=True) == "harm"
    assert closer_look(answers(right), answers(most), TOLERANCE, last=True) == "open", "ten lost may be chance"
    assert closer_look(answers(right), answers(fewer), TOLERANCE, last=True) == "open"
    assert closer_look(answers(none), answers(right), TOLERANCE, last=True) != "harm", "better"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_a_lucky_mark_is_replaced_by_the_mean_of_closer_looks(rates: list[float]) -> None:
    mark = HeldOut(25, 0.9, ITEMS)
    for rate in rates:
        mark = looked_at(mark, rate, 288)
    assert mark.pass_at_1 == pytest.approx(sum(rates) / len(rates))
    assert mark.items == 288 * len(rates)


class Life:
    """A node's evaluations as chance has them, with closer looks where the rules ask for them."""

    def __init__(self, seed: int, skill: float) -> None:
        self.random = np.random.default_rng(seed)
        self.watch = TripwireState()
        self.skills: dict[int, float] = {}
        self.skill = skill
        self.looks = 0
        self.asked = 0

    def evaluate(self, round_: int) -> bool:
        """True when the wire trips."""
        self.skills[round_] = self.skill
        rate = float(self.random.binomial(ITEMS, self.skill)) / ITEMS
        self.watch = update_tripwire(self.watch, evaluation(round_, rate), ITEMS, TOLERANCE)
        if self.watch.suspect is None or self.watch.best is None:
            return False
        self.looks += 1
        before, after, found = self._look(self.skills[self.watch.best.round])
        trips = found == "harm"
        verdict = ExternalSwitched(
            round=round_,
            taking=not trips,
            by="tripwire",
            sentence="",
            best=mean_pass_rate(before),
            now=mean_pass_rate(after),
            items=len(after),
        )
        self.watch = update_tripwire(self.watch, verdict, ITEMS, TOLERANCE)
        return trips

    def _look(self, best: float) -> tuple[list[ItemResult], list[ItemResult], Verdict]:
        """The steps of a closer look: every answer drawn independently, noisier than two models on one question can be."""
        right, now, found = np.zeros(0, bool), np.zeros(0, bool), "open"
        for factor in STEPS:
            right = np.append(right, self.random.random(factor * ITEMS) < best)
            now = np.append(now, self.random.random(factor * ITEMS) < self.skill)
            found = closer_look(answers(right), answers(now), TOLERANCE)
            if found != "open":
                break
        self.asked += 2 * len(now)
        return answers(right), answers(now), found


@pytest.mark.parametrize("skill", [0.05, 0.1, 0.3, 0.8])
def test_a_healthy_node_with_noisy_results_is_left_alone(skill: float) -> None:
    """Lives of a hundred evaluations each, every draw independent: noisier than a model can be on fixed items."""
    lives = [Life(seed, skill) for seed in range(20 if skill == 0.3 else 6)]
    assert not any(life.evaluate(25 * number) for life in lives for number in range(100))
    assert sum(life.looks for life in lives) > 0 or skill != 0.3, "and not because nothing was ever looked at"


@pytest.mark.parametrize("harmed", [0.0, 0.1])
def test_harm_trips_the_wire_within_two_evaluations(harmed: float) -> None:
    for seed in range(20):
        life = Life(seed, 0.35)
        assert not any(life.evaluate(25 * number) for number in range(20))
        life.skill = harmed
        assert life.evaluate(500) or life.evaluate(525)


def test_slow_harm_does_not_slip_by_under_ever_lower_marks() -> None:
    """Half of the skill lost in forty small steps."""
    caught = 0
    for seed in range(20):
        life = Life(seed, 0.4)
        for number in range(100):
            life.skill = 0.4 - 0.2 * min(max(number - 20, 0) / 40, 1.0)
            if life.evaluate(25 * number):
                caught += 1
                break
    assert caught == 20


@pytest.mark.parametrize(("skill", "least"), [(0.2, 0.95), (0.5, 0.95)])
def test_a_fall_of_a_third_is_found_within_two_evaluations(skill: float, least: float) -> None:
    """The stated power. Where fewer than some forty of the regular answers are right, two evaluations cannot tell."""
    lives, caught = 200, 0
    for seed in range(lives):
        life = Life(seed, skill)
        life.watch = TripwireState(best=HeldOut(25, skill, 8 * ITEMS, looked=True))
        life.skills[25] = skill
        life.skill = (1 - FALL) * skill
        caught += life.evaluate(50) or life.evaluate(75)
    assert caught / lives >= least - 0.03, f"{caught} of {lives}"


def test_a_best_of_less_than_ten_right_answers_is_evidence_of_nothing() -> None:
    """From 5 % to none over 96 items happens by chance: it must not add up to an alarm."""
    few, enough = HeldOut(10, 0.05, 96), HeldOut(10, 0.5, 96)
    assert fall_evidence(few, HeldOut(20, 0.0, 96), 0.15) == 0.0
    assert fall_evidence(enough, HeldOut(20, 0.0, 96), 0.15) > 5.0
