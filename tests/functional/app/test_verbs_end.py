"""How verbs end: a crash is no success, Ctrl+D is a no, a full disk is a sentence, and a recording is shown as set."""

from __future__ import annotations

import builtins
import getpass
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.many_groups import journal_with
from tests.support.node_process import environment

from sapo_desktop import cli
from sapo_desktop.commands.nodes import control, dashboard, replay
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import children
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event
from sapo_swarm.node.control_api import ControlClient, NodeStatus


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits at the terminal and presses Ctrl+D at every question."""

    def nothing(*_prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", nothing)
    monkeypatch.setattr(getpass, "getpass", nothing)


@pytest.mark.parametrize("verb", [["tour"], []], ids=["a recording", "a node"])
def test_a_dashboard_that_crashed_is_no_success(verb: list[str], home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.settings.write_text('[ui]\ntheme = "sapo-light"\nglyphs = "ascii"\n')
    shown: list[tuple[str, bool]] = []

    def crash(app: SapoDashboard) -> None:
        shown.append((app.theme, app.glyphs.ascii))

    monkeypatch.setattr(SapoDashboard, "run", crash)
    monkeypatch.setattr(SapoDashboard, "return_code", 1)
    for module in (dashboard, replay):
        monkeypatch.setattr(module, "require_terminal", lambda _instead: None)
    assert cli.run_command_line(verb) == 1
    assert shown == [("sapo-light", True)], "as it is set"


@pytest.mark.usefixtures("home")
def test_a_recording_without_a_terminal_says_how_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["tour"]) == 1
    assert "sapo-desktop tour --linear" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
def test_ctrl_d_at_a_question_is_a_no(home: Home) -> None:
    store.create_model_folder(home, "ada", RunConfig(model="fake", trainer="fake"))
    assert cli.run_command_line(["models", "delete", "ada"]) == 1
    assert cli.run_command_line(["uninstall", "--data"]) == 1
    assert cli.run_command_line(["login"]) == 2
    assert [model.name for model in store.all_models(home)] == ["ada"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_manual_page_that_cannot_be_written_is_one_sentence(home: Home) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sapo_desktop", "--print", "man"],
            env=environment(home.config),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr.startswith("sapo-desktop: ")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("home")
def test_a_task_that_there_is_not_leaves_no_empty_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, out = journal_with(tmp_path / "journal.db", 1), tmp_path / "out.jsonl"
    assert cli.run_command_line(["rollouts", str(journal), "--task", "typo", "-o", str(out)]) == 2
    assert "There is no group of the task 'typo'" in capsys.readouterr().err
    assert not out.exists()
    assert cli.run_command_line(["rollouts", str(journal), "-o", str(out)]) == 0
    assert "Wrote 1 group to" in capsys.readouterr().out


def test_a_model_whose_task_is_gone_says_which_and_how_to_get_it_back(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """It named tasks of other letters, which nobody had meant."""
    store.create_model_folder(home, "ada", RunConfig(model="fake", trainer="fake", tasks=("gone", "basic_arithmetic")))
    assert cli.run_command_line(["node", "ada", "--silo"]) == 2
    said = capsys.readouterr().err
    assert "This model trains on gone, basic_arithmetic: make the missing task again" in said
    assert "--tasks A,B" in said
    assert cli.run_command_line(["node", "ada", "--silo", "--tasks", "typo"]) == 2
    assert "This model trains on" not in capsys.readouterr().err, "that one was typed"


def test_a_list_of_models_with_a_damaged_one_does_not_say_that_there_is_none(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.create_model_folder(home, "ada", RunConfig(model="fake", trainer="fake")).folder / "model.json").write_text(
        "{"
    )
    assert cli.run_command_line(["models"]) == 0
    said = capsys.readouterr()
    assert "no model yet" not in said.out
    assert "is damaged" in said.err


def test_a_snooze_without_an_end_is_refused(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["snooze", "--for", "0"]) == 2
    assert "sapo-desktop pause" in capsys.readouterr().err


def test_the_first_line_of_a_watched_status_is_there_at_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = ("silo", "fake", "fake", "cpu", 3, 0, None, 0.0, -1.0, 0, 0.0, "0.0.9")
    status = NodeStatus("paused", "Paused", "person", 0.0, 7, "r", str(home.data), *silo)  # type: ignore[arg-type]
    told: list[bool] = []

    class OneStatus(ControlClient):
        async def status(self) -> NodeStatus:
            return status

        async def events(self, *_wanted: object, **_more: object) -> AsyncIterator[Event]:
            for event in ():
                yield event

    monkeypatch.setattr(control, "ControlClient", OneStatus)
    monkeypatch.setattr(control, "print", lambda _line, flush=False: told.append(flush), raising=False)
    assert cli.run_command_line(["status", "--watch"]) == 0
    assert told == [True]


async def test_a_verb_of_our_own_that_dies_does_not_say_how_far_it_was_in_place_of_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import sys; print('40 % writing', file=sys.stderr); raise SystemExit(3)"
    monkeypatch.setattr(children, "own_command", lambda: [sys.executable, "-c", code])
    steps = children.stream_verb([])
    assert await anext(steps) == "40 % writing"
    with pytest.raises(AppError, match="It ended without a word"):
        await anext(steps)
