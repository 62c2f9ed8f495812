"""Whatever is typed into the dashboard is answered with a sentence: an error that passes through would end the app."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in
from textual.app import App
from textual.widgets import Static

from sapo_backends.checkpoints import hub_cache, locate
from sapo_backends.errors import BackendUnavailable, ModelNotFound
from sapo_desktop import cli, errors
from sapo_desktop.dashboard.history.groups import GroupFilter
from sapo_desktop.dashboard.screens.rollouts.keys import ExportDialog
from sapo_desktop.errors import USER_ERRORS, UsageError
from sapo_desktop.paths import Home, typed_path
from sapo_desktop.services import first_run
from sapo_desktop.services.machine.doctor import stream_findings
from sapo_desktop.services.models.screen.actions import HomeModels
from sapo_desktop.services.models.screen.interface import NewModel
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes.children import verb_process
from sapo_desktop.services.tasks.wizard.actions import HomeTasks
from sapo_desktop.services.tasks.wizard.interface import WizardAnswers
from sapo_swarm.config import RunConfig
from sapo_swarm.node.control_api import NodeNotRunning
from sapo_swarm.tasks.catalogue import UnknownTask

NOBODY, LONG = "~nosuch1/x.csv", "x" * 300
WRONG = (NOBODY, LONG, "a\0b")


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home with a model and with an own task that is damaged."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path)
    found = Home.find()
    found.prepare()
    store.create_model_folder(found, "mine", RunConfig())
    (found.tasks / "broken").mkdir(parents=True)
    (found.tasks / "broken" / "task.toml").write_text("name = [")
    with library_in(found.tasks):
        yield found


@pytest.mark.parametrize("typed", WRONG)
def test_a_path_that_cannot_be_is_refused_with_what_to_write_instead(typed: str) -> None:
    with pytest.raises(UsageError, match=r"whole path|folder of your own"):
        typed_path(typed)


def test_a_path_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(UsageError, match="folder of your own"):
        typed_path(tmp_path / "a" / "b")


def test_a_path_need_not_be_there_and_a_tilde_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert typed_path("~/new") == typed_path("new") == tmp_path / "new"
    assert typed_path("file/below") == tmp_path / "file" / "below"


def test_what_is_written_below_a_file_is_refused_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("SAPO_HOME", str(home))
    assert cli.run_command_line(["new", "kim", "--base", "starter-1m"]) == 0
    below = str(file / "a" / "b")
    for verb in (
        ("export", "kim", "--checkpoint", "base", "--to", below),
        ("models", "figures", "kim", "--format", "csv", "-o", below),
        ("backup", below),
    ):
        assert cli.run_command_line(verb) == 2
        assert f"{file} is a file" in capsys.readouterr().err


def test_an_error_with_a_sentence_brings_the_exit_code_of_its_kind() -> None:
    codes = {
        ModelNotFound(): 1,
        BackendUnavailable("no"): 4,
        UnknownTask(): 2,
        NodeNotRunning(): 3,
        OSError(): 1,
        UsageError(): 2,
    }
    assert {error: errors.exit_code_of(error) for error in codes} == codes
    assert errors.exit_code_of(TypeError()) is None


@pytest.mark.parametrize("typed", ["~d", *WRONG])
async def test_the_wizard_complains_of_a_path_while_it_is_typed(home: Home, typed: str) -> None:
    with pytest.raises(USER_ERRORS):
        await HomeTasks(home).places(typed)
    with pytest.raises(USER_ERRORS):
        await HomeTasks(home).look(WizardAnswers(typed))


@pytest.mark.parametrize("typed", ["~nobody1/x.jsonl", LONG, ""])
async def test_the_export_of_rollouts_complains_of_a_file_name(home: Home, typed: str) -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        dialog = ExportDialog(3, GroupFilter())
        app.push_screen(dialog)
        await pilot.pause()
        dialog.query_one("#file").value = typed  # type: ignore[attr-defined]
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is dialog
        assert str(dialog.query_one("#complaint", Static).content)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("run.model", "statrer", "Did you mean 'starter'"),
        ("run.model", NOBODY, "There is no model"),
        ("run.model", LONG, "There is no model"),
        ("run.tasks", "broken", "broken"),
    ],
)
async def test_f2_refuses_a_wrong_value_and_says_why(home: Home, key: str, value: str, said: str) -> None:
    with pytest.raises(USER_ERRORS, match=said):
        await HomeSettings(home).change(key, value, "mine")


async def test_f2_refuses_a_damaged_task_for_new_models_too(home: Home) -> None:
    (home.models / "mine" / store.RECORD).unlink()
    with pytest.raises(USER_ERRORS, match="broken"):
        await HomeSettings(home).change("run.tasks", "broken")


@pytest.mark.parametrize("answers", [NewModel("a", "starter", tasks=("broken",)), NewModel("a", NOBODY)])
async def test_a_new_model_of_a_damaged_task_or_of_no_base_is_refused(home: Home, answers: NewModel) -> None:
    with pytest.raises(USER_ERRORS):
        await HomeModels(home).new(answers)
    assert [model.name for model in store.all_models(home)] == ["mine"]


@pytest.mark.parametrize("model", ["~x", NOBODY, LONG])
async def test_the_first_questions_say_what_is_wrong_with_a_typed_model(home: Home, model: str) -> None:
    assert await first_run.wrong_with(model)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks", "new", NOBODY],
        ["new", "other", "--base", NOBODY],
        ["models", "figures", "mine", "--output", NOBODY],
    ],
)
def test_the_command_line_answers_such_a_path_with_one_line(
    home: Home, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.run_command_line(arguments)
    except SystemExit as left:
        code = int(str(left.code))
    assert code in (1, 2)
    assert "nosuch1" in capsys.readouterr().err


def test_a_cache_of_models_under_nobody_s_home_holds_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "~nosuch1/cache")
    assert hub_cache.find_snapshot("owner/name") is None
    with pytest.raises(ModelNotFound):
        locate.resolve_local_model("owner/name")


async def test_an_app_that_was_removed_meanwhile_says_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(home.data / "gone"))
    with pytest.raises(USER_ERRORS, match="open it again"):
        async with verb_process(["chat"]):
            pass
    with pytest.raises(USER_ERRORS):
        await anext(aiter(stream_findings()))
    with pytest.raises(USER_ERRORS):
        await HomeModels(home).proceed(store.find_model(home, "mine").record.id)
