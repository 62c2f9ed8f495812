"""An engine of somebody else's, found by its entry point: alone, and behind a generator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.functional.app.test_files_obeyed import EVIL, OBEYED
from tests.support.node_process import calm, environment, sapo

from sapo_backends.checkpoints import locate
from sapo_swarm.scoring.scorer import WorkerProcess

TEMPLATE = Path(__file__).parents[3] / "docs" / "engine-template"
QUICK = ("--silo", "--model", "starter-1m", "--tasks", "basic_arithmetic", "--local-groups", "1", "--group-size", "2")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the template of an engine is installed, built as its pyproject.toml says."""
    pytest.importorskip("setuptools", reason="what builds the template is not installed")
    copy = shutil.copytree(TEMPLATE, tmp_path_factory.mktemp("source") / "my-engine")
    site = tmp_path_factory.mktemp("site")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *offline, str(copy)], check=True)
    return site


@pytest.fixture
def plugged(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    return tmp_path / "home"


def test_the_templates_own_tests_pass(plugged: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(TEMPLATE),
        str(TEMPLATE),
    ]
    done = subprocess.run(command, env=environment(plugged), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("trainer", ["mine", "llamacpp+mine"])
def test_a_plugged_in_engine_trains_alone_and_behind_a_generator(plugged: Path, trainer: str) -> None:
    if "llamacpp" in trainer:
        pytest.importorskip("llama_cpp")
    more = ("--trainer", trainer, "--method", "lora", "--eval-every", "0", "--max-new-tokens", "4", "--rounds", "1")
    done = sapo(plugged, "node", *QUICK, *more)
    assert done.returncode == 0, done.stderr
    assert "round    1/1" in done.stdout


def test_a_pair_of_which_one_is_unknown_names_the_nearest(tmp_path: Path) -> None:
    refused = sapo(tmp_path, "node", *QUICK, "--trainer", "llamacpp+torhc")
    assert refused.returncode == 2
    assert "There is no engine 'llamacpp+torhc'. Did you mean 'llamacpp+torch'?" in refused.stderr


def test_a_frozen_app_starts_its_scorer_worker_by_a_switch() -> None:
    process = WorkerProcess(1 << 30, command=[sys.executable, "-m", "sapo_desktop", "--scorer-worker"])
    process.start()
    try:
        assert process.hello is not None
        assert not process.hello.failure
    finally:
        process.close()


def test_a_worker_that_cannot_start_ends_the_node_with_a_sentence(tmp_path: Path) -> None:
    calm(tmp_path)
    broken = tmp_path / "site" / "reasoning_gym"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os; os._exit(9)")
    env = environment(tmp_path)
    env["PYTHONPATH"] = os.pathsep.join((str(broken.parent), env["PYTHONPATH"]))
    command = [sys.executable, "-m", "sapo_desktop", "node", "--silo", "--trainer", "fake", "--model", "fake"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert "The scorer worker ended while it started" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_whose_chat_template_refuses_every_question_ends_the_node_with_a_sentence(tmp_path: Path) -> None:
    """Another round would be refused too: nobody has to be there to stop it. What it says is printed, not obeyed."""
    pytest.importorskip("torch", reason="the torch engine is not installed")
    model = shutil.copytree(locate.resolve_model("starter-1m"), tmp_path / "refuses")
    (model / "chat_template.jinja").write_text(f"{{{{ raise_exception('only pictures {EVIL}') }}}}", "utf-8")
    done = sapo(tmp_path / "home", "node", *QUICK, "--model", str(model), "--trainer", "torch", "--eval-every", "0")
    assert done.returncode == 1, done.stdout
    assert "chat template refused the conversation: only pictures ev" in done.stderr
    assert not set(done.stdout + done.stderr) & OBEYED
    assert "Traceback" not in done.stderr
