"""Held-out statistics against closed forms, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.evaluation import (
    ItemResult,
    compare_results,
    evaluation_event,
    held_out_items,
    mcnemar_exact,
    mean_pass_at_k,
    pass_at_k,
    permutation_partners,
    stratified_bootstrap,
    task_scores,
    wilson_interval,
)
from sapo_swarm.events import TaskScore
from sapo_swarm.tasks.catalogue import is_train
from sapo_swarm.types import TaskRef


def result(index: int, *correct: int, task: str = "bf", formed: bool = True, cut: bool = False) -> ItemResult:
    many = len(correct)
    return ItemResult(TaskRef(task, "paper", 2**31, index), tuple(map(bool, correct)), (formed,) * many, (cut,) * many)


def test_items_are_the_same_everywhere_and_out_of_reach_of_training() -> None:
    chosen = held_out_items(["bf", "gcd"], "starter", 3)
    assert [(ref.dataset, ref.preset, ref.index) for ref in chosen][2:4] == [
        ("bf", "starter", 2),
        ("gcd", "default", 0),
    ]
    assert not any(is_train(ref) for ref in chosen)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (30, 100, 0.2189, 0.3959)]
)
def test_wilson_gives_the_textbook_intervals(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_estimate_and_stays_in_the_unit_interval(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = wilson_interval(hits, trials)
    assert 0.0 <= low <= hits / trials <= high <= 1.0


@pytest.mark.parametrize("correct", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_all_subsets_with_a_success(correct: int, k: int) -> None:
    verdicts = [True] * correct + [False] * (5 - correct)
    subsets = list(itertools.combinations(verdicts, k))
    assert pass_at_k(5, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_1_is_the_mean_rate() -> None:
    results = [result(0, 1, 0, 0, 0), result(1, 1, 1, 0, 0)]
    assert mean_pass_at_k(results, 1) == pytest.approx(0.375)
    with pytest.raises(ValueError, match="pass@5 needs"):
        mean_pass_at_k(results, 5)


@pytest.mark.parametrize(("gained", "lost", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (9, 1, 0.021484375), (3, 3, 1.0)])
def test_mcnemar_is_the_exact_binomial_test(gained: int, lost: int, p: float) -> None:
    assert mcnemar_exact(gained, lost) == mcnemar_exact(lost, gained) == pytest.approx(p)
    assert 0.0 <= mcnemar_exact(3000, 2500) < 1e-6


def test_the_bootstrap_is_repeatable_and_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(0).normal(0.1, 1.0, 400)
    interval = stratified_bootstrap([values])
    assert interval == stratified_bootstrap([values])
    half = 1.96 * values.std() / 20
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)


def test_stratified_intervals_are_narrower_when_tasks_differ() -> None:
    easy, hard = np.ones(50), -np.ones(50)
    assert stratified_bootstrap([easy, hard]).high == 0.0
    assert stratified_bootstrap([np.concatenate([easy, hard])]).high > 0.1


def test_bootstrap_intervals_cover_the_truth_about_95_times_in_100() -> None:
    random = np.random.default_rng(2)
    covered = 0
    for trial in range(200):
        sample = (random.random(100) < 0.3).astype(np.float64)
        interval = stratified_bootstrap([sample], seed=trial)
        covered += interval.low <= 0.3 <= interval.high
    assert 178 <= covered <= 199


def test_a_comparison_pairs_items_and_finds_the_gain() -> None:
    before = [result(i, 0, 0) for i in range(40)] + [result(i, 1, 0, task="arc_1d") for i in range(40)]
    after = [result(i, i % 2, i % 2) for i in range(40)] + [result(i, 1, 0, task="arc_1d") for i in range(40)]
    change = compare_results(before, after[::-1])
    assert change.delta.value == pytest.approx(0.25)
    assert change.delta.excludes_zero
    assert change.tasks["bf"].value == pytest.approx(0.5)
    assert change.tasks["arc_1d"].value == change.tasks["arc_1d"].high == 0.0
    assert (change.gained, change.lost) == (20, 0)
    assert change.p_value == pytest.approx(2**-19)
    assert change.accuracy_share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("items", "changed", "measurable"), [(1, 1, False), (5, 5, False), (6, 6, True), (100, 5, False)]
)
def test_a_change_of_fewer_than_six_items_is_not_measurable(items: int, changed: int, measurable: bool) -> None:
    right, wrong = [result(i, i < changed) for i in range(items)], [result(i, 0) for i in range(items)]
    for change, sign in ((compare_results(wrong, right), 1), (compare_results(right, wrong), -1)):
        assert change.delta.excludes_zero is change.tasks["bf"].excludes_zero is measurable
        assert change.delta.value == pytest.approx(sign * changed / items)


def test_a_gain_of_every_item_is_not_certain() -> None:
    """The bootstrap of 30 equal differences has no width; 30 of 30 may still be 88.6 %."""
    right, wrong = [result(i, 1) for i in range(30)], [result(i, 0) for i in range(30)]
    up, down = compare_results(wrong, right).delta, compare_results(right, wrong).delta
    assert (up.low, up.high) == (pytest.approx(0.886, abs=1e-3), 1.0)
    assert (down.low, down.high) == (-1.0, pytest.approx(-0.886, abs=1e-3))


def test_a_gain_from_writing_the_tags_is_told_from_a_gain_from_solving() -> None:
    """Half of the well-formed answers are right before and after; only more of them are well formed."""
    before = [result(i, i % 2, formed=True) for i in range(4)] + [result(i, 0, formed=False) for i in range(4, 16)]
    after = [result(i, i % 2, formed=True) for i in range(16)]
    change = compare_results(before, after)
    assert change.delta.value == pytest.approx(0.375)
    assert change.accuracy_share == pytest.approx(0.0)


def test_a_mixed_gain_is_split_between_solving_and_form() -> None:
    """From half well formed and half of those right to all and three quarters: 3/8 of the gain is solving."""
    before = [result(i, i % 2) for i in range(4)] + [result(i, 0, formed=False) for i in range(4, 8)]
    after = [result(i, i % 4 > 0) for i in range(8)]
    change = compare_results(before, after)
    assert change.accuracy_share == pytest.approx(0.375)


def test_no_difference_is_none() -> None:
    same = [result(i, i % 3 == 0) for i in range(30)]
    change = compare_results(same, same)
    assert not change.delta.excludes_zero
    assert change.accuracy_share is None


def test_results_on_other_items_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same held-out items"):
        compare_results([result(0, 1)], [result(1, 1)])
    with pytest.raises(ValueError, match="same held-out items"):
        compare_results([result(0, 1), result(1, 1)], [result(1, 1)])


def test_task_scores_and_the_event_carry_shares_and_intervals() -> None:
    results = [result(0, 1, 0), result(1, 0, 0, cut=True), result(0, 1, 1, task="arc_1d", formed=False)]
    bf, arc = task_scores(results)
    assert (bf.task, bf.items, bf.pass_at_1, bf.truncated, bf.well_formed) == ("bf", 2, 0.25, 0.5, 1.0)
    assert (arc.pass_at_1, arc.well_formed) == (1.0, 0.0)
    event = evaluation_event(results, 7, 2.5, base=results)
    assert (event.round, event.items, event.delta) == (7, 3, 0.0)
    assert event.low <= event.pass_at_1 <= event.high
    assert evaluation_event(results, 7, 2.5).delta is None
    assert math.isfinite(event.pass_at_1)


def test_every_item_lends_its_answer_to_one_other_of_its_task_and_a_single_one_to_none() -> None:
    refs = [TaskRef(task, "paper", 2**31, number) for number, task in enumerate(["a", "b", "a", "c", "b", "a"])]
    assert permutation_partners(refs) == {0: 2, 2: 5, 5: 0, 1: 4, 4: 1}
    assert permutation_partners([]) == {}


def test_a_task_carries_its_answer_permutation_score_over_the_items_that_have_one() -> None:
    found = [
        msgspec.structs.replace(result(0, 1, 0), permuted=(True, True)),
        msgspec.structs.replace(result(1, 1, 1), permuted=()),
    ]
    (score,) = task_scores(found)
    assert (score.pass_at_1, score.permuted) == (0.75, 1.0)
    assert task_scores([result(0, 1)])[0].permuted is None


@pytest.mark.parametrize(
    ("passed", "permuted", "items_asked", "yes"),
    [
        (0.48, 0.40, 100, True),
        (0.48, 0.20, 100, False),  # most of the score comes from reading the question
        (0.125, 0.125, 16, False),  # two of sixteen: chance
        (0.0, 0.0, 100, False),
        (0.48, None, 100, False),
        (0.0, 0.2, 16, False),  # no score, nothing to come from anywhere
    ],
)
def test_a_score_is_by_rote_where_half_of_it_is_had_with_answers_to_other_questions(
    passed: float, permuted: float | None, items_asked: int, yes: bool
) -> None:
    assert TaskScore("logic", items_asked, passed, 0.0, 1.0, 1.0, 0.0, permuted).shortcut is yes
