"""The command that proves a GPU: what it runs, and what it says of what failed, took too long or was left out."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prove() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prove_card", ROOT / "tests" / "benchmarks" / "prove_card.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_step_names_a_file_that_exists_and_they_fit_into_the_time(prove: ModuleType, tmp_path: Path) -> None:
    steps = prove.steps("cuda", False, tmp_path)
    for step in steps:
        for word in step.command:
            assert not word.endswith((".py", ".toml")) or Path(word).is_file(), word
    shapes = {step.command[2] for step in steps if step.command[0].endswith("bench_round.py")}
    assert shapes == {"S", "135M", "L"}
    assert all(step.command.count("cuda") == 1 for step in steps if "-m" not in step.command or "bench" in step.command)


def test_trl_is_a_peer_on_a_gpu_too_for_one_round(
    prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "trl")
    for device in ("cuda", "cpu"):
        beside = [step.command for step in prove.steps(device, False, tmp_path) if "trl" in step.command]
        assert len(beside) == 2
        assert all(command[-2:] == ("--peer-rounds", "1") for command in beside)


def test_a_report_says_what_failed_took_too_long_and_was_left_out(prove: ModuleType, tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_along.py", "FIGURE = 42")
    environment = prove.environment_of(prove.unpacked(wheels, site), tmp_path, "cpu")
    step = prove.Step
    cases = (
        (step("one", ("-c", "import carried_along, sapo_backends; print(carried_along.FIGURE)"), 60), "passed"),
        (step("two", ("-c", "raise SystemExit('no card')"), 60), "FAILED with exit code 1"),
        (step("three", ("-c", "while True: pass"), 0.2), "FAILED: longer than 0 s"),
        (step("four", ("-c", ""), 60, ("nothing_of_that_name",)), "left out: nothing_of_that_name is not here"),
    )
    outcomes = [prove.run(one, environment, 60.0, 1.0) for one, _ in cases]
    assert prove.run(cases[0][0], environment, 0.0, 1.0).said == "left out: no time was left"
    text = prove.report(outcomes, "cpu")
    for (one, said), outcome in zip(cases, outcomes, strict=True):
        assert outcome.said.startswith(said)
        assert f"| {one.name} | {said}" in text
    assert "42" in text
    assert "no card" in text
