"""Where a gain of the lab comes from: by task, and without the task that gained most."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sapo_lab.report.by_task import (
    gain_without_top_task,
    permuted_heads,
    permuted_lines,
    task_gain_columns,
    task_gain_rows,
    tasks_of,
)
from sapo_lab.report.results import HeldOut, RunResult
from sapo_lab.schema import parse_experiment

EXPERIMENT = parse_experiment(
    {
        "name": "e",
        "run": {"rounds": 4},
        "arms": [{"name": "silo"}, {"name": "swarm", "title": "S", "against": ["silo"]}],
    }
)


def at_end(tasks: dict[str, float], permuted: dict[str, float] | None = None, ended: bool = True) -> HeldOut:
    return HeldOut(4, 100.0, float(np.mean(list(tasks.values()))), tasks, 1, ended, permuted or {})


def run(arm: str, seed: int, point: HeldOut) -> RunResult:
    return RunResult(arm, seed, 1, *[np.zeros(4)] * 13, 0.0, 0.0, (point,), point.complete, {})


SILO = [run("silo", seed, at_end({"a": 0.1, "b": 0.1})) for seed in (1, 2, 3)]


def test_a_gain_in_one_task_alone_is_gone_without_it() -> None:
    swarm = {seed: at_end({"a": 0.3, "b": 0.1}) for seed in (1, 2, 3)}
    gain, most, without = gain_without_top_task(swarm, {run.seed: run.held_out[0] for run in SILO})
    assert (gain.value, most, without.value) == (pytest.approx(1.0), "a", pytest.approx(0.0))


def test_seeds_that_only_one_arm_has_are_left_out_of_both() -> None:
    found = {"silo": SILO, "swarm": [run("swarm", seed, at_end({"a": 0.2 * seed, "b": 0.1})) for seed in (1, 2, 7)]}
    _, line = task_gain_rows(EXPERIMENT, found)
    assert line[:4] == ("S", "silo", "30.0 : 10.0", "10.0 : 10.0")
    assert len(line) == len(task_gain_columns(tasks_of(found)))


def test_where_nothing_gained_no_task_is_left_out() -> None:
    gain, most, without = gain_without_top_task({1: at_end({"a": 0.05, "b": 0.1})}, {1: at_end({"a": 0.1, "b": 0.1})})
    assert gain.value == pytest.approx(-0.25)
    assert most == ""
    assert math.isnan(without.value)


def test_a_single_task_is_not_left_out() -> None:
    gain, most, without = gain_without_top_task({1: at_end({"a": 0.2})}, {1: at_end({"a": 0.1})})
    assert (gain.value, most) == (pytest.approx(1.0), "")
    assert math.isnan(without.value)


def test_runs_that_have_not_ended_have_no_line() -> None:
    assert task_gain_rows(EXPERIMENT, {"silo": [run("silo", 1, at_end({"a": 0.1}, ended=False))]}) == []


def test_the_answer_permutation_check_stands_beside_the_scores_where_it_was_measured() -> None:
    rote = [run("swarm", seed, at_end({"a": 0.1 * seed, "b": 0.1}, {"a": 0.1 * seed, "b": 0.0})) for seed in (1, 2)]
    found = {"silo": SILO, "swarm": rote}
    (line,) = permuted_lines(EXPERIMENT, found)
    assert line[:5] == ("S", "–", "15.0 : 15.0", "10.0 : 0.0", "12.5 : 7.5")
    assert len(permuted_heads(tasks_of(found))) == len(line)


def test_the_gain_less_the_answer_permutation_score_leaves_a_shortcut_out() -> None:
    silo = [run("silo", s, at_end({"a": 0.1, "b": 0.1}, {"a": 0.1, "b": 0.0})) for s in (1, 2)]
    swarm = [run("swarm", s, at_end({"a": 0.5, "b": 0.12}, {"a": 0.5, "b": 0.0})) for s in (1, 2)]
    _, line = permuted_lines(EXPERIMENT, {"silo": silo, "swarm": swarm})
    assert line[:2] == ("S", "silo")
    assert line[-2:] == ("6.00 % (6.00 to 6.00)", "+20 % (+20 to +20)")


def test_a_task_that_an_arm_does_not_ask_is_left_open() -> None:
    found = {"silo": SILO, "swarm": [run("swarm", seed, at_end({"a": 0.2}, {"a": 0.1})) for seed in (1, 2, 3)]}
    silo, swarm = task_gain_rows(EXPERIMENT, found)
    assert silo[2:4] == ("10.0", "10.0")
    assert swarm[2:4] == ("20.0 : 10.0", "–")
    assert permuted_lines(EXPERIMENT, found)[0][2:5] == ("20.0 : 10.0", "–", "20.0 : 10.0")
