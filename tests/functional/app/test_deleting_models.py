"""A model is deleted only where it is named, and where no other one needs it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import sapo_assets
from sapo_desktop import cli
from sapo_desktop.errors import known
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.actions import HomeModels
from sapo_desktop.services.models.shelf import store
from sapo_swarm.config import RunConfig


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With the models kim and ada."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    for name in ("kim", "ada"):
        store.create(found, name, RunConfig())
    return found


@pytest.mark.parametrize("typed", [("delete", ""), ("rename", "", "eve"), ("duplicate", "", "eve"), ("prune", "")])
def test_delete_rename_duplicate_and_prune_with_an_empty_name_change_nothing_and_exit_with_2(
    home: Home, typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["models", *typed, "--yes"]) == 2
    assert f"sapo-desktop models {typed[0]}" in capsys.readouterr().err
    assert {model.name for model in store.all_models(home)} == {"kim", "ada"}


def test_a_model_whose_export_another_model_starts_from_is_not_deleted_without_naming_that_one(
    home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kim = store.find(home, "kim")
    export = Path(shutil.copytree(sapo_assets.model_path("starter-1m"), kim.folder / "exports" / "kim-3-hf"))
    assert cli.run(["new", "child", "--base", str(export)]) == 0
    with pytest.raises(known(), match=r"an export of it is the base of child\."):
        asyncio.run(HomeModels(home).delete(kim.record.id))
    delete = ["models", "delete", "kim", "--yes"]
    assert cli.run(delete) == 2
    assert "--even-in-use" in capsys.readouterr().err
    assert export.exists()
    moved = export.rename(tmp_path / "moved")
    assert cli.run(delete) == 0, "what is not there any more is not needed"
    assert moved.exists()


def test_a_model_in_use_is_deleted_by_who_says_so(home: Home) -> None:
    kim = store.find(home, "kim")
    export = shutil.copytree(sapo_assets.model_path("starter-1m"), kim.folder / "exports" / "kim-3-hf")
    store.create(home, "child", RunConfig(model=str(export)))
    assert cli.run(["models", "delete", "kim", "--even-in-use", "--yes"]) == 0
    assert not kim.folder.exists()
