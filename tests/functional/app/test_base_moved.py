"""A model whose base is a folder that was moved or left on another machine: whose base it is, and the command that helps."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.support.backups import brought, home_at
from tests.support.gguf_files import placed
from tests.support.node_process import sapo

import sapo_assets
from sapo_backends.errors import ModelNotFound
from sapo_desktop import cli
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import mending, store
from sapo_desktop.services.models.training import plan_session
from sapo_desktop.services.personal_data import archive
from sapo_swarm.config import RunConfig

QUICK = (
    *("--trainer", "torch", "--tasks", "basic_arithmetic", "--local-groups", "1", "--group-size", "2"),
    *("--eval-every", "0", "--max-new-tokens", "4", "--precision", "float32", "--method", "lora", "--examples", "off"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    return home_at(tmp_path / "home")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sapo_assets.model_path("starter-1m"), tmp_path / "base"))


def test_every_verb_says_whose_base_is_gone_and_the_command_that_it_prints_finds_it_again(
    home: Home, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the torch engine is not installed")
    assert cli.run_command_line(["new", "kim", "--base", str(base), *QUICK]) == 0
    assert sapo(home.config, "node", "kim", "--rounds", "1").returncode == 0
    capsys.readouterr()
    base.rename(tmp_path / "renamed")
    verbs = (
        ("node", "kim"),
        ("eval", "kim"),
        ("compare", "kim"),
        ("chat", "kim", "--ask", "1+1"),
        ("serve-model", "kim"),
        ("export", "kim"),
    )
    for verb in verbs:
        assert cli.run_command_line(verb) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"sapo-desktop: kim was made from {base}, which is not there any more.")
        assert said.count("\n") == 1
    assert cli.run_command_line(["models", "show", "kim"]) == 0
    shown = capsys.readouterr().out
    assert f"kim was made from {base}, which is not there any more." in shown
    cure = re.search(r"sapo-desktop (node .* NEWFOLDER)", said)
    assert cure
    done = sapo(home.config, *shlex.split(cure[1].replace("NEWFOLDER", str(tmp_path / "renamed"))))
    assert "Stopped after round 1." in done.stdout, done.stderr
    assert cli.run_command_line(["models", "show", "kim"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"kim, from {tmp_path / 'renamed'}\n")
    assert "not there" not in shown


def test_a_model_that_was_never_trained_takes_its_base_at_its_new_place_or_another_where_it_is_gone(
    home: Home, base: Path, tmp_path: Path
) -> None:
    one = store.create_model_folder(home, "kim", RunConfig(model=str(base), trainer="torch"))

    def began_with(folder: Path | str) -> str:
        return plan_session(one, RunConfig(), {"model": str(folder)}).config.model

    copied = shutil.copytree(base, tmp_path / "copied")
    assert began_with(copied) == str(copied)
    with pytest.raises(UsageError, match="Make another model"):
        began_with("starter")
    moved = base.rename(tmp_path / "moved")
    assert began_with(moved) == str(moved)
    assert began_with("starter") == "starter"
    with pytest.raises(ModelNotFound, match=f"There is no model '{tmp_path}/nowhere'"):
        began_with(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match=r"Where is it now\? sapo-desktop node kim --model NEWFOLDER$"):
        began_with(base)


def test_a_backup_names_the_folders_that_it_lacks_and_a_restore_without_them_says_what_to_do(
    home: Home, base: Path, tmp_path: Path
) -> None:
    for name, model in (("kim", str(base)), ("leo", str(base)), ("eve", "starter")):
        store.create_model_folder(home, name, RunConfig(model=model, trainer="torch"))
    saved = archive.create_backup(home, tmp_path / "mine.tar")
    said = [sentence for sentence in saved.besides if str(base) in sentence]
    assert said == [f"Left out: {base}, the base of kim, leo. Save that folder, too."]
    assert brought(home_at(tmp_path / "second"), saved.path)["models/kim"] == "restored"
    base.rename(tmp_path / "elsewhere")
    back = brought(home_at(tmp_path / "third"), saved.path)
    assert back["models/eve"] == "restored"
    assert back["models/kim"].startswith(f"restored. kim was made from {base}, which is not there any more.")


@pytest.mark.parametrize("name", ["mine.gguf", "Mine.GGUF", "sha256-0123abcd"])
def test_of_a_base_that_was_a_file_the_file_is_asked_for(home: Home, tmp_path: Path, name: str) -> None:
    """LM Studio, llama.cpp and Ollama keep a model in one file; a folder in its place would be refused."""
    path = placed(tmp_path / name)
    kim = store.create_model_folder(home, "kim", RunConfig(model=str(path), trainer="torch"))
    saved = archive.create_backup(home, tmp_path / "mine.tar")
    assert f"Left out: {path}, the base of kim. Save that file, too." in saved.besides
    path.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(ModelNotFound, match=r"Where is it now\? sapo-desktop node kim --model NEWFILE\.gguf$"):
        mending.require_base_folder(kim)
