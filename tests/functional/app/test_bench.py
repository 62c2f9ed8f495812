"""`sapo-desktop bench` as a person types it, with the engine that needs nothing and once with torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.node_process import CALM, sapo

from sapo_backends import registry
from sapo_backends.base import LoadRequest
from sapo_backends.measure import probe
from sapo_backends.measure.choice import WIDTHS, EngineCandidate
from sapo_desktop.services import first_run

needs_torch = pytest.mark.skipif(
    "torch" not in registry.installed_backends(), reason="the torch engine is not installed"
)


def test_the_table_fits_a_terminal_and_ends_with_the_choice(tmp_path: Path) -> None:
    """Progress goes to the error stream; a quick look is not kept."""
    done = sapo(tmp_path, "bench", "--trainer", "fake", "--quick")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("tokens/s") and "64 wide" in line for line in lines)
    assert any(line.startswith("fake ") and line.endswith(" s") for line in lines)
    assert {"round", "memory", "of the limit"} <= {line[:13].strip() for line in lines}
    assert "Fastest: fake" in done.stdout
    assert "measuring fake (1 of 1)" in done.stderr
    assert not (tmp_path / "cache" / "speed.json").exists()


def test_json_is_one_object_a_line(tmp_path: Path) -> None:
    done = sapo(tmp_path, "bench", "--trainer", "fake", "--quick", "--json")
    objects = {row["kind"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert set(objects) == {"machine", "model", "measured", "choice"}
    assert objects["measured"]["generation"].keys() == {str(width) for width in WIDTHS}
    assert min(objects["measured"]["generation"].values()) > 0
    assert objects["measured"]["update"] > 0
    assert objects["measured"]["memory"] > 1 << 20
    assert objects["choice"]["candidate"]["engine"] == "fake"


@needs_torch
@pytest.mark.slow
def test_what_was_measured_is_used_by_the_next_run(tmp_path: Path) -> None:
    """One candidate, the smallest model: the note in the run's folder is the choice."""
    asked = ("--precision", "float32", "--threads", "1")
    sapo(tmp_path, "config", "set", "run.model", "starter-1m")
    done = sapo(tmp_path, "bench", "--anyway", *asked)
    assert done.returncode == 0, done.stderr
    assert "of the limit" in done.stdout
    assert "Memory: a round of 32 groups of 8 with questions of up to" in done.stdout
    assert "Chosen: torch float32, 1 thread, because" in done.stdout
    short = ("--rounds", "1", "--local-groups", "1", "--group-size", "2", "--max-new-tokens", "4", "--eval-every", "0")
    trained = sapo(tmp_path, "node", "--silo", "--tasks", "basic_arithmetic", *short)
    assert trained.returncode == 0, trained.stderr
    (note,) = (tmp_path / "data" / "models").glob("*/engine.json")
    assert json.loads(note.read_text()) == {"trainer": "torch", "precision": "float32", "threads": 1}
    (config,) = (tmp_path / "data" / "models").glob("*/model.json")
    assert json.loads(config.read_text())["precision"] == "auto"  # what was asked for stays what was asked for


@needs_torch
def test_rounds_that_ran_here_tell_what_the_next_run_like_them_takes(tmp_path: Path) -> None:
    """The card of the base says so, until another setting or a bench makes the next run another one."""
    run = 'model = "starter-1m"\ntasks = ["basic_arithmetic"]\nlocal_groups = 1\ngroup_size = 2\nmax_new_tokens = 4\n'
    (tmp_path / "config.toml").write_text(f"{CALM}[run]\n{run}")
    assert "(a rough estimate from this machine's limits;" in sapo(tmp_path, "models", "show", "starter-1m").stdout
    done = sapo(tmp_path, "node", "--silo", "--rounds", "3", "--eval-every", "0", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(measured over 3 rounds here\)", sapo(tmp_path, "models", "show", "starter-1m").stdout)
    again = sapo(tmp_path, "node", "--silo", "--rounds", "4", "--eval-every", "0", "--seed", "7")
    assert again.returncode == 0, again.stderr
    told = json.loads(sapo(tmp_path, "models", "show", "starter-1m", "--json").stdout)
    assert (told["measured"], told["rounds"]) == (True, 4)
    sapo(tmp_path, "config", "set", "run.max_new_tokens", "8")
    assert "(a rough estimate" in sapo(tmp_path, "models", "show", "starter-1m").stdout


@needs_torch
def test_a_sound_engine_verifies(tmp_path: Path) -> None:
    done = sapo(tmp_path, "bench", "starter-1m", "--verify", "--trainer", "torch", "--precision", "float32")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["pass"] * 7
    assert lines[-1] == "All is well."


@needs_torch
def test_an_engine_that_computes_something_else_fails_the_verification(tmp_path: Path) -> None:
    """The test engine has another model than the one it is compared with."""
    done = sapo(tmp_path, "bench", "starter-1m", "--verify", "--trainer", "fake")
    assert done.returncode == 1
    assert "FAIL  fake" in done.stdout
    assert "Something is wrong" in done.stdout


@needs_torch
def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = sapo(tmp_path, "bench", "startr", "--trainer", "torch")
    assert done.returncode == 1
    assert "Did you mean 'starter'?" in done.stderr


@needs_torch
def test_a_node_whose_rounds_do_not_fit_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[limits]\nmax_memory = 0.8\n")
    large = ("--local-groups", "256", "--group-size", "64", "--max-new-tokens", "700")
    done = sapo(tmp_path, "node", "--silo", "--trainer", "torch", "--device", "cpu", *large)
    assert done.returncode == 1
    assert " is free. This fits: --" in done.stderr
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_a_candidate_that_cannot_be_measured_says_why() -> None:
    """The bench goes on with the others."""
    one = probe.in_child(EngineCandidate("no-such-engine"), LoadRequest(), seconds=0.1)
    assert "no-such-engine" in one.failure
    assert one.update == 0.0


@needs_torch
async def test_the_first_questions_are_told_a_speed_and_a_memory_that_were_measured() -> None:
    said = await first_run.measure_speed("torch", "starter-1m")
    found = re.fullmatch(r"([\d,]+) tok/s written, ([\d,]+) trained; a round needs [\d.]+ [MG]B", said)
    assert found is not None, said
    assert all(int(group.replace(",", "")) > 50 for group in found.groups()[:2])
    assert await first_run.measure_speed("torch", "no-such-model") == ""
