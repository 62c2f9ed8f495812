"""The workflow of a release tries what the app says it supports, by the script that runs here too."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.benchmarks import install_matrix

from sapo_desktop.cli import GROUPS

ROOT = Path(__file__).resolve().parents[2]
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
SCRIPT = "tests/benchmarks/install_matrix.py"


def test_every_python_that_the_app_runs_on_is_tried_on_every_system() -> None:
    matrix = JOBS["use"]["strategy"]["matrix"]
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        from setup_venv import NEWEST, OLDEST
    finally:
        sys.path.remove(str(ROOT / "packaging"))
    assert matrix["python"] == [f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert {name.partition("-")[0] for name in matrix["system"]} == {"ubuntu", "macos", "windows"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={matrix['python'][0]}"


def test_every_action_has_its_version_and_the_token_of_the_repository_stays_out_of_the_checkout() -> None:
    actions = [step for step in STEPS if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in actions)
    checkouts = [step for step in actions if step["uses"].startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_script_takes_the_words_that_the_workflow_calls_it_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installer that cannot be called is a line that says so, and an exit code."""
    (command,) = [step["run"] for step in STEPS if SCRIPT in step.get("run", "")]
    matrix = JOBS["use"]["strategy"]["matrix"]
    for installer in {*matrix["installer"], *(more["installer"] for more in matrix["include"])}:
        words = shlex.split(command.replace("${{ matrix.installer }}", installer))
        monkeypatch.setattr(sys, "argv", words[1:])
        monkeypatch.setattr(install_matrix, "run", _fails)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "dist").mkdir(exist_ok=True)
        (tmp_path / "dist" / "sapo_desktop-1-py3-none-any.whl").touch()
        with pytest.raises(SystemExit) as ended:
            install_matrix.main()
        assert ended.value.code == 1
        assert f'"installer": "{installer}"' in capsys.readouterr().out


def _fails(command: list[str], environment: dict[str, str]) -> Any:
    return install_matrix.subprocess.CompletedProcess(command, 1, "", "no network")


def test_a_verb_of_each_group_of_help_is_tried_on_the_installed_app() -> None:
    assert [*install_matrix.VERBS] == [*GROUPS]
    assert all(verb[0] in GROUPS[group] for group, verb in install_matrix.VERBS.items())


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ({"rounds": 2, "doctor": "green"}, True),
        ({"rounds": 1, "doctor": "green"}, False),
        ({"rounds": 2, "doctor": ["no node"]}, False),
        ({"rounds": 2, "doctor": "green", "failed": {"models": "no"}}, False),
        ({"failed": "pip install"}, False),
        ({"engine": "none", "rounds": 0, "doctor": ["no"], "failed": {"new": "No engine that can train."}}, True),
        ({"engine": "none", "rounds": 0, "doctor": ["no"], "failed": {"new": "No engine", "tasks": "no"}}, False),
        ({"engine": "none", "failed": "uv tool install"}, False),
    ],
)
def test_a_line_is_good_only_where_everything_was_done(line: dict[str, object], good: bool) -> None:
    assert install_matrix.good({"engine": "cpu", "installer": "pip", **line}) == good
