"""Where a gain of the lab comes from: by task, and without the task that gained most."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sapo_swarm.constant_answer import ConstantAnswer
from sapo_swarm.lab.by_task import heads, lines, sentences, split, tasks_of
from sapo_swarm.lab.results import HeldOut, RunResult
from sapo_swarm.lab.schema import parse

EXPERIMENT = parse(
    {
        "name": "e",
        "run": {"rounds": 4},
        "arms": [{"name": "silo"}, {"name": "swarm", "title": "S", "against": ["silo"]}],
    }
)


def at_end(tasks: dict[str, float], constants: dict[str, ConstantAnswer] | None = None, ended: bool = True) -> HeldOut:
    return HeldOut(4, 100.0, float(np.mean(list(tasks.values()))), tasks, 1, ended, constants or {})


def run(arm: str, seed: int, point: HeldOut) -> RunResult:
    return RunResult(arm, seed, 1, *[np.zeros(4)] * 13, 0.0, 0.0, (point,), point.complete, {})


SILO = [run("silo", seed, at_end({"a": 0.1, "b": 0.1})) for seed in (1, 2, 3)]


def test_a_gain_in_one_task_alone_is_gone_without_it() -> None:
    swarm = {seed: at_end({"a": 0.3, "b": 0.1}) for seed in (1, 2, 3)}
    gain, most, without = split(swarm, {run.seed: run.held_out[0] for run in SILO})
    assert (gain.value, most, without.value) == (pytest.approx(1.0), "a", pytest.approx(0.0))


def test_seeds_that_only_one_arm_has_are_left_out_of_both() -> None:
    found = {"silo": SILO, "swarm": [run("swarm", seed, at_end({"a": 0.2 * seed, "b": 0.1})) for seed in (1, 2, 7)]}
    _, line = lines(EXPERIMENT, found)
    assert line[:4] == ("S", "silo", "30.0 : 10.0", "10.0 : 10.0")
    assert len(line) == len(heads(tasks_of(found)))


def test_where_nothing_gained_no_task_is_left_out() -> None:
    gain, most, without = split({1: at_end({"a": 0.05, "b": 0.1})}, {1: at_end({"a": 0.1, "b": 0.1})})
    assert gain.value == pytest.approx(-0.25)
    assert most == ""
    assert math.isnan(without.value)


def test_runs_that_have_not_ended_have_no_line() -> None:
    assert lines(EXPERIMENT, {"silo": [run("silo", 1, at_end({"a": 0.1}, ended=False))]}) == []


def test_an_arm_that_scores_by_one_answer_is_named_and_its_text_made_safe() -> None:
    trick = {"a": ConstantAnswer("\x1b[31mP", 0.7, 0.8), "b": ConstantAnswer("7", 0.7, 0.01)}
    (said,) = sentences(EXPERIMENT, {"swarm": [run("swarm", 1, at_end({"a": 0.5, "b": 0.5}, trick))]})
    assert said.startswith("S, seed 1: a: 70 % of the answers are")
    assert said.endswith("Its pass@1: 50.0 %.")
    assert "\x1b" not in said
