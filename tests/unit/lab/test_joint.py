"""Intervals over seeds and questions together: they hold the truth, and say nothing where there is nothing to say."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from sapo_lab.report.joint import comparison_count, joint_columns, joint_difference, joint_gain, joint_rows
from sapo_lab.report.node_types import greedy_rows
from sapo_lab.report.results import Floats, HeldOut, RunResult
from sapo_lab.schema import parse_experiment
from sapo_swarm.evaluation import ConfidenceInterval

EXPERIMENT = parse_experiment(
    {
        "name": "e",
        "run": {"rounds": 2},
        "arms": [
            {"name": "silo"},
            {"name": "a", "title": "A", "against": ["silo"], "epochs": 3, "minibatches": 2},
            {"name": "b", "against": ["a", "silo"]},
        ],
    }
)


def run(arm: str, seed: int, verdicts: dict[str, Floats]) -> RunResult:
    point = HeldOut(2, 100.0, 0.5, {"t": 0.5}, 1, True)
    arrays = [np.full(2, 4000.0)] * 13
    return RunResult(arm, seed, 2, *arrays, 60.0, 0.0, (point,), True, {}, verdicts=verdicts, cpu_s=10.0)


def answers(rng: np.random.Generator, hard: Floats, gain: float, seeds: int) -> dict[int, dict[str, Floats]]:
    """Verdicts of `seeds` runs of one arm that solves each question with its own chance, and each seed a little better or
    worse."""
    luck = np.exp(rng.normal(0.0, 0.1, seeds))
    return {s: {"t": (rng.random(hard.size) < hard * gain * luck[s]).astype(np.float64)} for s in range(seeds)}


def test_the_interval_holds_the_truth_19_times_in_20_or_more_often() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(150):
        hard = rng.beta(0.5, 2.0, 100)
        found = joint_gain(answers(rng, hard, 0.75, 6), answers(rng, hard, 0.6, 6), draws=400)
        held += found.low <= 0.25 <= found.high
    assert held >= 0.92 * 150


def test_questions_that_both_arms_find_hard_make_the_interval_no_wider() -> None:
    """All arms answer the same questions: what differs between questions and not between arms is no noise."""
    hard = np.repeat([0.0, 1.0], 50)
    same = {seed: {"t": hard} for seed in range(4)}
    assert joint_gain(same, same) == ConfidenceInterval(0.0, 0.0, 0.0)


def test_tasks_weigh_alike_however_many_questions_they_have() -> None:
    mine = {s: {"t": np.ones(10), "u": np.zeros(90)} for s in range(2)}
    theirs = {s: {"t": np.full(10, 0.5), "u": np.zeros(90)} for s in range(2)}
    assert joint_gain(mine, theirs).value == pytest.approx(1.0)


def test_a_gain_that_rests_on_one_task_of_six_is_no_gain_for_tasks_in_general() -> None:
    rng = np.random.default_rng(3)
    theirs = {s: {f"t{task}": np.repeat([0.0, 1.0], 50) for task in range(6)} for s in range(6)}
    mine = {s: {**tasks, "t0": np.ones(100)} for s, tasks in theirs.items()}
    assert joint_gain(mine, theirs).low > 0
    found = joint_difference(mine, theirs)
    assert found.value == pytest.approx(0.5 / 6)
    assert found.low == 0.0
    on_all = {
        s: {task: np.maximum(v, rng.random(100) < 0.5) for task, v in tasks.items()} for s, tasks in theirs.items()
    }
    assert joint_difference(on_all, theirs).low > 0.15
    assert math.isnan(joint_difference({1: mine[1]}, {1: theirs[1]}).low)


def test_each_type_of_node_is_compared_with_its_like_at_temperature_0() -> None:
    """A large node that stays as it was hides what the small ones learnt, in a mean over all."""
    learnt = {
        seed: {
            "small": {"t": np.repeat([0.0, 1.0], 50), "u": np.ones(9)},
            "large": {"t": np.ones(100), "u": np.ones(9)},
        }
        for seed in (1, 2)
    }
    before = {
        seed: {"small": {"t": np.zeros(100), "u": np.ones(9)}, "large": {"t": np.ones(100), "u": np.ones(9)}}
        for seed in (1, 2, 3)
    }
    found = {
        name: [msgspec.structs.replace(run(name, seed, {}), greedy_by_type=types) for seed, types in some.items()]
        for name, some in (("a", learnt), ("silo", before), ("b", {4: {}}))
    }
    small, large = greedy_rows(EXPERIMENT, found)
    assert small[:5] == ("A", "small", "silo", "1, 2", "75.00 % : 50.00 %")
    assert small[5].startswith("+25.0 (+0.0 to +5"), "it rests on one task of two"
    assert large == ("A", "large", "silo", "1, 2", "100.00 % : 100.00 %", "+0.0 (+0.0 to +0.0)")
    assert greedy_rows(EXPERIMENT, {"a": [run("a", 1, {})], "silo": [run("silo", 1, {})]}) == [], "not saved then"


def test_one_seed_has_a_gain_and_no_interval_and_no_seed_nothing() -> None:
    one = {3: {"t": np.array([1.0, 0.0])}}
    found = joint_gain(one, one)
    assert found.value == 0.0
    assert math.isnan(found.low)
    assert math.isnan(joint_gain(one, {4: one[3]}).value)
    assert math.isnan(joint_gain(one, {3: {"t": np.zeros(2)}}).value)


def test_a_line_has_both_arms_their_costs_and_the_seeds_that_both_have() -> None:
    right, wrong = {"t": np.array([1.0, 1.0])}, {"t": np.array([1.0, 0.0])}
    found = {
        "silo": [run("silo", seed, wrong) for seed in (1, 2, 3)],
        "a": [run("a", seed, right) for seed in (1, 2)],
        "b": [run("b", 1, {})],
    }
    (line,) = joint_rows(EXPERIMENT, found)
    assert line[:6] == ("A", "silo", "1", "1, 2", "100.00 % : 50.00 %", "+100.0 %")
    assert line[9:] == ("2 : 2", "12 : 2", "30 : 30", "5.0 : 5.0")
    assert comparison_count(EXPERIMENT) == 2
    assert "corrected for 2 comparisons" in joint_columns(EXPERIMENT)
    assert comparison_count(msgspec.structs.replace(EXPERIMENT, comparisons=5)) == 5
