"""Gains on the way of a lab run: both arms are read where they had generated as many tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sapo_lab.report.gain_curve import gain_at, gain_curve_columns, gain_curve_rows
from sapo_lab.report.results import HeldOut, RunResult
from sapo_lab.report.table import comparison_rows, describe_row
from sapo_lab.schema import parse_experiment

EXPERIMENT = parse_experiment(
    {
        "name": "e",
        "run": {"rounds": 4},
        "arms": [{"name": "silo"}, {"name": "swarm", "title": "S", "against": ["silo"]}],
    }
)


def run(arm: str, seed: int, points: list[tuple[float, float]], finished: bool = True) -> RunResult:
    """points: tokens and pass@1 of each evaluation, the last one complete."""
    nothing = np.zeros(len(points))
    held_out = [
        HeldOut(number, tokens, passed, {"t": passed}, 1, finished and number == len(points) - 1)
        for number, (tokens, passed) in enumerate(points)
    ]
    return RunResult(arm, seed, 1, nothing + 1.0, *[nothing] * 12, 0.0, 0.0, tuple(held_out), finished, {})


SILO = [run("silo", seed, [(0, 0.01), (100, 0.02), (200, 0.04)]) for seed in (1, 2)]


def test_both_arms_are_read_at_the_same_number_of_tokens() -> None:
    """At half of the silo's 200 tokens it has 2 %; the swarm, between its 50 and 150 tokens, 3 and 4 %."""
    swarm = [run("swarm", seed, [(0, 0.01), (50, 0.02), (150, 0.02 + 0.02 * seed)]) for seed in (1, 2)]
    mine, theirs, gain = gain_at(swarm, SILO, 0.5)
    assert (mine.value, theirs.value) == pytest.approx((0.035, 0.02))
    assert gain.value == pytest.approx(0.75)
    assert gain.low < gain.value < gain.high


def test_on_the_curve_both_arms_are_read_on_the_questions_that_both_were_asked() -> None:
    """Few questions are asked on the way and many at the end. The few happen to be easier: 8 instead of 4 % at the silo's end."""
    whole = SILO[0].held_out
    easier = (replace(whole[0], on_curve={"t": 0.03}), whole[1], replace(whole[2], on_curve={"t": 0.08}))
    silo = [msgspec.structs.replace(SILO[0], held_out=easier)]
    swarm = [run("swarm", 1, [(0, 0.01), (100, 0.02), (400, 0.05)])]
    on_the_way, at_the_end = gain_at(swarm, silo, 0.75), gain_at(swarm, silo, 1.0)
    assert on_the_way[1].value == pytest.approx(0.05), "between 2 % and 8 %"
    assert at_the_end[1].value == pytest.approx(0.08), "the swarm goes on, so both are read on the few"
    same = gain_at([run("swarm", 1, [(0, 0.01), (201, 0.06)])], silo, 1.0)
    assert same[1].value == pytest.approx(0.04), "both have ended: all questions count"


def test_an_arm_that_ends_a_little_early_is_measured_at_its_own_end_and_one_far_behind_not_at_all() -> None:
    short = [run("swarm", 1, [(0, 0.01), (97, 0.03)])]
    mine, theirs, _ = gain_at(short, SILO, 0.5)
    assert (mine.value, theirs.value) == pytest.approx((0.03, 0.01 + 0.01 * 0.97))
    assert math.isnan(gain_at(short, SILO, 0.75)[0].value)


def test_runs_that_go_on_are_not_compared() -> None:
    going = [run("swarm", 1, [(0, 0.01), (200, 0.5)], finished=False)]
    assert math.isnan(gain_at(going, SILO, 0.5)[0].value)
    assert gain_curve_rows(EXPERIMENT, {"silo": SILO, "swarm": going}) == []


def test_a_line_names_both_arms_and_leaves_open_what_was_not_measured() -> None:
    found = {"silo": SILO, "swarm": [run("swarm", 1, [(0, 0.01), (30, 0.02), (60, 0.03)])]}
    ((arm, other, *cells),) = gain_curve_rows(EXPERIMENT, found)
    assert (arm, other, len(cells)) == ("S", "silo", len(gain_curve_columns()) - 2)
    assert cells[0] == "1.83 : 1.25 %, +47 %"
    assert cells[-1] == "–"


def test_between_the_untrained_model_and_the_end_nothing_is_read_where_nothing_was_measured() -> None:
    """Of a longer run without an evaluation on the way nobody knows what it had at the other's tokens, a straight line least."""
    longer = [run("silo", seed, [(0, 0.01), (300, 0.04)]) for seed in (1, 2)]
    swarm = [run("swarm", seed, [(0, 0.01), (200, 0.05)]) for seed in (1, 2)]
    row = comparison_rows(EXPERIMENT, {"silo": longer, "swarm": swarm})[1]
    assert math.isnan(row.equal_tokens.gain.value)
    assert row.held_out.gain.value == pytest.approx(0.25)
    said = describe_row(row, {"silo": "8/0"})
    assert "held-out pass@1 at the end +25 %" in said, "the arms may have different numbers of rounds"
    assert "after the same number of generated tokens not measured" in said
    assert math.isnan(gain_at(swarm, longer, 0.5)[2].value)
    nearly = [run("silo", seed, [(0, 0.01), (204, 0.04)]) for seed in (1, 2)]
    assert gain_at(swarm, nearly, 1.0)[2].value > 0.2, "both have ended, nearly"


def test_where_one_of_two_arms_was_not_measured_stands_a_dash() -> None:
    silo = [run("silo", 1, [(100, 0.02), (200, 0.04)])]
    swarm = [run("swarm", 1, [(0, 0.01), (50, 0.02), (250, 0.05)])]
    mine, theirs, _ = gain_at(swarm, silo, 0.25)
    assert (math.isnan(mine.value), math.isnan(theirs.value)) == (False, True)
    assert "nan" not in " ".join(map(str, gain_curve_rows(EXPERIMENT, {"silo": silo, "swarm": swarm})))
