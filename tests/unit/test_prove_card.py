"""The command that proves a GPU: what it runs, and what it says of what failed, took too long or was left out."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
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
        assert [command[2] for command in beside] == ["S", "135M", "L"]
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
        (step("two", ("-c", "print('why' + 90 * '\\n'); exit('no card')"), 60), "FAILED with exit code 1"),
        (step("three", ("-c", "while True: pass"), 0.2), "FAILED: longer than 0 s"),
        (
            step("four", ("-c", ""), 60, ("nothing_of_that_name",)),
            "left out: ModuleNotFoundError: No module named 'nothing_of_that_name' (--collect, --wheels)",
        ),
    )
    outcomes = [prove.run(one, environment, 60.0, 1.0) for one, _ in cases]
    assert prove.run(cases[0][0], environment, 0.0, 1.0).said == "left out: no time was left"
    text = prove.report(outcomes, "cpu")
    for (one, said), outcome in zip(cases, outcomes, strict=True):
        assert outcome.said.startswith(said)
        assert f"| {one.name} | {said}" in text
    assert "42" in text
    assert "no card" in text
    assert "why" in text, "what failed is told at length"


def test_a_report_says_which_goals_were_met(prove: ModuleType) -> None:
    def round_of(shape: str, groups: int, share: float, plan: float) -> str:
        found = {"generate_percent_of_read": share, "peak_gb": {"ours": 2.0}, "shape": shape, "groups": groups}
        return "a turn\n" + json.dumps(found | {"plan_gb": plan}) + "\n"

    outputs = [round_of("S", 8, 3.0, 9.0), round_of("135M", 8, 4.0, 2.6), round_of("L", 1, 49.9, 2.0), "", "5", "{}"]
    outcomes = [prove.Outcome(prove.Step("one", (), 1), "passed", 1.0, output) for output in outputs]
    assert [line for line in prove.report(outcomes, "cuda").splitlines() if line.endswith(("| yes |", "| no |"))] == [
        "| 135M, 8 x 8: planned memory / peak | 0.85 to 1.15 | 1.30 | no |",
        "| L, 1 x 8: decoding, share of the memory's rate | 50 % at least | 49.9 % | no |",
        "| L, 1 x 8: planned memory / peak | 0.85 to 1.15 | 1.00 | yes |",
    ]
    assert "| goal |" not in prove.report(outcomes[3:], "cuda")


def test_a_step_that_takes_too_long_says_where_it_was(prove: ModuleType) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nprint('here', flush=True)\nwhile True: pass"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    assert "KeyboardInterrupt" in prove.ended(process)


def distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def brought_by(*names: str) -> set[metadata.Distribution]:
    """Those distributions and what they need, as far as they are installed."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and (one := distribution(name)):
            found[name] = one
            waiting += [re.split(r"[^\w.-]", need)[0] for need in one.requires or () if "extra ==" not in need]
    return set(found.values())


def test_with_nothing_but_torch_transformers_peft_and_what_is_carried_every_module_of_a_step_is_found(
    prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment of its own, which has no packages."""
    site, bare = tmp_path / "site", tmp_path / "bare"
    site.mkdir()
    venv.create(bare, symlinks=os.name != "nt")
    carried = {one for names in prove.CARRIED.values() for name in names.split() if (one := distribution(name))}
    for one in brought_by("torch", "transformers", "peft") | carried:
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(one.locate_file(top))
    monkeypatch.setattr(sys, "executable", str(bare / ("Scripts/python.exe" if os.name == "nt" else "bin/python")))
    environment = prove.environment_of(site, tmp_path, "cpu")
    engine = ("sapo_backends.torch_backend.loading", "sapo_backends.torch_backend.device_check")
    for needs in sorted({step.needs for step in prove.steps("cpu", False, tmp_path)} | {engine}):
        outcome = prove.run(prove.Step("", ("-c", ""), 60, needs), environment, 60.0, 1.0)
        assert outcome.said == "passed", outcome.output


def test_without_the_device_the_report_is_one_line(
    prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "card.md"
    monkeypatch.setattr(sys, "argv", ["prove_card.py", "--device", "hpu", "--report", str(report)])
    assert prove.main() == 1
    rows = [line for line in report.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) == 2
    assert rows[1].startswith("| a sum on the device | FAILED with exit code 1 |")
