"""The held-out tripwire's rules: luck never trips it, harm does, and the journal alone says where things stand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.evaluation import ItemResult
from sapo_swarm.events import Evaluated, ExternalSwitched
from sapo_swarm.sapo.tripwire import (
    CERTAINTY,
    CLOSER,
    HeldOut,
    Watch,
    confirmed,
    fell,
    looked_at,
    mean,
    observe,
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


def answers(right: np.ndarray) -> list[ItemResult]:
    """One sample an item."""
    return [
        ItemResult(TaskRef("bf", "starter", index), (bool(yes),), (True,), (False,)) for index, yes in enumerate(right)
    ]


def tripped(round_: int = 50) -> ExternalSwitched:
    return ExternalSwitched(round=round_, taking=False, by="tripwire", sentence="Off.", restored=25)


def test_the_best_result_is_remembered_and_a_fall_is_suspect() -> None:
    watch = watch_of([evaluation(0, 0.1), evaluation(25, 0.4), evaluation(50, 0.38)], ITEMS, TOLERANCE)
    assert watch.best == HeldOut(25, 0.4, ITEMS)
    assert watch.suspect is None
    watch = observe(watch, evaluation(75, 0.15), ITEMS, TOLERANCE)
    assert watch.suspect == HeldOut(75, 0.15, ITEMS)
    assert observe(watch, evaluation(100, 0.41), ITEMS, TOLERANCE).suspect is None


@pytest.mark.parametrize(
    ("best", "now", "items", "tolerance", "suspicious"),
    [
        (0.40, 0.10, 144, 0.25, True),
        (0.40, 0.10, 144, 0.0, False),  # switched off
        (0.40, 0.31, 100_000, 0.25, False),  # certain, and less than a quarter
        (0.40, 0.10, 8, 0.25, False),  # a lot, and chance explains it
        (0.02, 0.00, 144, 0.25, False),
    ],
)
def test_a_fall_must_be_large_and_more_than_chance(
    best: float, now: float, items: int, tolerance: float, suspicious: bool
) -> None:
    assert fell(HeldOut(25, best, items), HeldOut(50, now, items), tolerance) is suspicious


def test_results_on_other_questions_say_nothing() -> None:
    watch = watch_of([evaluation(25, 0.4), evaluation(50, 0.0, items=ITEMS + 9)], ITEMS, TOLERANCE)
    assert (watch.best, watch.suspect) == (HeldOut(25, 0.4, ITEMS), None)


def test_a_node_that_takes_nothing_suspects_nothing_until_the_person_takes_again() -> None:
    watch = watch_of([evaluation(25, 0.4), tripped()], ITEMS, TOLERANCE)
    assert (watch.taking, watch.trips, watch.restored, watch.sentence) == (False, 1, 25, "Off.")
    watch = observe(watch, evaluation(75, 0.1), ITEMS, TOLERANCE)
    assert watch.suspect is None
    watch = observe(watch, ExternalSwitched(round=80, taking=True, by="person", sentence="On."), ITEMS, TOLERANCE)
    assert (watch.taking, watch.trips, watch.sentence) == (True, 1, "")
    assert observe(watch, evaluation(100, 0.1), ITEMS, TOLERANCE).suspect is not None


def test_the_closer_look_needs_a_large_and_certain_loss() -> None:
    right = np.arange(288) < 120
    assert confirmed(answers(right), answers(right & (np.arange(288) % 3 == 0)), TOLERANCE)
    assert not confirmed(answers(right), answers(right), TOLERANCE)
    assert not confirmed(answers(right), answers(right & (np.arange(288) % 6 != 0)), TOLERANCE), "a sixth only"
    assert not confirmed(answers(right), answers(~right), TOLERANCE), "better"
    assert not confirmed(answers(right), answers(right & (np.arange(288) % 3 == 0)), 0.0)
    with pytest.raises(ValueError, match="same questions"):
        confirmed(answers(right), answers(right)[1:], TOLERANCE)


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
        self.watch = Watch()
        self.skills: dict[int, float] = {}
        self.skill = skill
        self.looks = 0

    def evaluate(self, round_: int) -> bool:
        """True when the wire trips."""
        self.skills[round_] = self.skill
        rate = float(self.random.binomial(ITEMS, self.skill)) / ITEMS
        self.watch = observe(self.watch, evaluation(round_, rate), ITEMS, TOLERANCE)
        if self.watch.suspect is None or self.watch.best is None:
            return False
        self.looks += 1
        count = CLOSER * ITEMS
        before = answers(self.random.random(count) < self.skills[self.watch.best.round])
        after = answers(self.random.random(count) < self.skill)
        trips = confirmed(before, after, TOLERANCE)
        verdict = ExternalSwitched(
            round=round_, taking=not trips, by="tripwire", sentence="", best=mean(before), now=mean(after), items=count
        )
        self.watch = observe(self.watch, verdict, ITEMS, TOLERANCE)
        return trips


@pytest.mark.parametrize("skill", [0.03, 0.3, 0.8])
def test_a_healthy_node_with_noisy_results_is_left_alone(skill: float) -> None:
    """Twenty lives of a hundred evaluations each, every draw independent: noisier than a model can be on fixed items."""
    lives = [Life(seed, skill) for seed in range(20)]
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


def test_the_certainty_asked_for_is_far_from_chance() -> None:
    assert CERTAINTY <= 1e-4
