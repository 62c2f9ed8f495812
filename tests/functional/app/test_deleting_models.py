"""A model is deleted only where it is named, and where no other one needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.many_groups import journal_with
from tests.support.scripted_feed import WIDE, ScriptedFeed, settled

import sapo_assets
from sapo_desktop import cli
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.history.groups import JournalGroups
from sapo_desktop.errors import USER_ERRORS, AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.actions import HomeModels
from sapo_desktop.services.models.shelf import keeping, store
from sapo_swarm.config import RunConfig


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With the models kim and ada."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    for name in ("kim", "ada"):
        store.create_model_folder(found, name, RunConfig())
    return found


@pytest.mark.parametrize("typed", [("delete", ""), ("rename", "", "eve"), ("duplicate", "", "eve"), ("prune", "")])
def test_delete_rename_duplicate_and_prune_with_an_empty_name_change_nothing_and_exit_with_2(
    home: Home, typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command_line(["models", *typed, "--yes"]) == 2
    assert f"sapo-desktop models {typed[0]}" in capsys.readouterr().err
    assert {model.name for model in store.all_models(home)} == {"kim", "ada"}


def test_a_model_whose_export_another_model_starts_from_is_not_deleted_without_naming_that_one(
    home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kim = store.find_model(home, "kim")
    export = Path(shutil.copytree(sapo_assets.model_path("starter-1m"), kim.folder / "exports" / "kim-3-hf"))
    assert cli.run_command_line(["new", "child", "--base", str(export)]) == 0
    with pytest.raises(USER_ERRORS, match=r"an export of it is the base of child\."):
        asyncio.run(HomeModels(home).delete(kim.record.id))
    delete = ["models", "delete", "kim", "--yes"]
    assert cli.run_command_line(delete) == 2
    assert "--even-in-use" in capsys.readouterr().err
    assert export.exists()
    moved = export.rename(tmp_path / "moved")
    assert cli.run_command_line(delete) == 0, "what is not there any more is not needed"
    assert moved.exists()


def test_a_model_in_use_is_deleted_by_who_says_so(home: Home) -> None:
    kim = store.find_model(home, "kim")
    export = shutil.copytree(sapo_assets.model_path("starter-1m"), kim.folder / "exports" / "kim-3-hf")
    store.create_model_folder(home, "child", RunConfig(model=str(export)))
    assert cli.run_command_line(["models", "delete", "kim", "--even-in-use", "--yes"]) == 0
    assert not kim.folder.exists()


def test_a_rename_that_is_refused_names_the_folder_that_is_still_there(home: Home) -> None:
    kim = store.find_model(home, "kim")
    kept = kim.folder.with_name(f".partial-{kim.folder.name}") / "from a kill"
    kept.mkdir(parents=True)
    with pytest.raises(AppError) as refused:
        keeping.delete_model(kim)
    assert str(refused.value).endswith(f"What is left lies in {kim.folder}.")
    assert store.find_model(home, "kim") == kim


@dataclass
class Watched(ScriptedFeed):
    """A node whose model lies here."""

    journal: JournalGroups | None = None

    def groups(self) -> JournalGroups | None:  # type: ignore[override]
        return self.journal


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux for the files that are open")
async def test_while_a_watched_model_is_deleted_no_file_of_it_is_open_in_the_dashboard(home: Home) -> None:
    """Windows would not rename its folder. Screen 3 tells afterwards that there is nothing."""
    kim = store.find_model(home, "kim")
    feed = Watched([], journal=JournalGroups(journal_with(kim.folder / "journal.db", 40)))
    async with SapoDashboard(feed).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        while not open_below(kim.folder):
            await pilot.pause(0.01)
        readers = [thread for thread in threading.enumerate() if thread.name == "rollouts"]
        await pilot.press("1")
        await settled(pilot)
        for reader in readers:
            await asyncio.to_thread(reader.join, 20)
        assert open_below(kim.folder) == []
        await asyncio.to_thread(keeping.delete_model, kim)
        await pilot.press("3")
        while "There is no journal" not in "\n".join(await settled(pilot)):
            await pilot.pause(0.01)


def open_below(folder: Path) -> list[str]:
    """The files in it that this process has open."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{handle}"))
    return [path for path in found if path.startswith(f"{folder}/")]
