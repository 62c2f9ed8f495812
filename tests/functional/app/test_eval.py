"""`sapo-desktop eval` as people type it: what it says about its own figures."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.node_process import calm, sapo

NEW = (
    "--base",
    "fake",
    "--trainer",
    "fake",
    "--tasks",
    "basic_arithmetic",
    "--max-new-tokens",
    "4",
    "--eval-every",
    "0",
)


def test_questions_that_may_have_been_trained_on_are_a_warning_and_a_figure(tmp_path: Path) -> None:
    calm(tmp_path)
    for arguments in (("new", "kim", *NEW), ("node", "kim", "--rounds", "1")):
        assert sapo(tmp_path, *arguments).returncode == 0
    for items, beyond in ((5, 0), (402, 2)):
        done = sapo(tmp_path, "eval", "kim", "--items", str(items), "--json")
        assert json.loads(done.stdout)["maybe_trained_on"] == beyond
        assert ("Careful: 2 of the 402 questions may have been trained on" in done.stderr) is (beyond > 0), done.stderr


def test_both_temperatures_are_measured_with_intervals_for_all_and_for_each_task(tmp_path: Path) -> None:
    """What scripts read of earlier versions stays, of temperature 1."""
    calm(tmp_path)
    for arguments in (("new", "kim", *NEW), ("node", "kim", "--rounds", "1")):
        assert sapo(tmp_path, *arguments).returncode == 0
    told = json.loads(sapo(tmp_path, "eval", "kim", "--items", "6", "--json").stdout)
    for side in ("base", "trained"):
        for temperature in ("t0", "t1"):
            rate = told[side][temperature]
            assert rate["low"] <= rate["pass_at_1"] <= rate["high"]
            assert rate["tasks"]["basic_arithmetic"] == {
                key: rate[key] for key in ("pass_at_1", "low", "high", "items")
            }
    for temperature in ("t0", "t1"):
        gain = told["trained"][temperature]["pass_at_1"] - told["base"][temperature]["pass_at_1"]
        difference = told["difference"][temperature]
        assert abs(difference["value"] - gain) < 1e-9
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert not difference["measurable"], "six items cannot show a change"
        assert difference["tasks"]["basic_arithmetic"]["value"] == difference["value"]
    assert (told["temperature"], told["pass_at_k_after"]["1"]) == (1.0, told["trained"]["t1"]["pass_at_1"])
    text = sapo(tmp_path, "eval", "kim", "--items", "6").stdout
    assert "Sampled, as in training (temperature 1)" in text
    assert "Greedy, as a chat answers (temperature 0)" in text
    alone = json.loads(sapo(tmp_path, "eval", "kim", "--items", "6", "--temperature", "0", "--json").stdout)
    assert (list(alone["base"]), alone["base"]["t0"]) == (["t0"], told["base"]["t0"])
    two = json.loads(sapo(tmp_path, "eval", "kim", "--before", "0", "--items", "6", "--samples", "2", "--json").stdout)
    assert list(two["first"]) == ["t1", "t0"]
    assert two["pass_at_k_after"].keys() == {"1", "2"}
