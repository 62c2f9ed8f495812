"""A model is deleted only where it is named, and where no other one needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_desktop import cli
from sapo_desktop.paths import Home
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
