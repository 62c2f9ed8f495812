"""A model whose model.json cannot be read: nothing takes its name or its place, every verb says so, and it can be made anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import calm

from sapo_desktop import cli
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import supervisor

FAKE = ("--trainer", "fake", "--tasks", "basic_arithmetic", "--local-groups", "2", "--eval-every", "0")
ROUND = ("node", "--silo", "--rounds", "1", "--quiet")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a model that was trained for a round."""
    root = tmp_path_factory.mktemp("trained")
    calm(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPO_HOME", str(root))
        assert (
            cli.run_command_line(["new", "Kim", "--base", "fake", *FAKE, "--preset", "hard", "--group-size", "4"]) == 0
        )
        assert cli.run_command_line(list(ROUND)) == 0
    return root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Home:
    """The same with the model's record cut off."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    found = Home.find()
    record = found.models / "kim" / "model.json"
    record.write_bytes(record.read_bytes()[:300])
    return found


def newer(home: Home) -> None:
    """The record, as a later version may write it."""
    (home.models / "kim" / "model.json").write_text(json.dumps({"format": store.FORMAT + 1, "name": "Kim"}))


@pytest.mark.parametrize(
    "typed",
    [
        ROUND,
        ("node", "Kim"),
        ("chat",),
        ("eval", "kim"),
        ("export",),
        ("rollouts",),
        ("models", "show", "kim"),
        ("serve-model",),
    ],
    ids=" ".join,
)
def test_no_verb_passes_over_a_damaged_record(
    home: Home, capsys: pytest.CaptureFixture[str], typed: tuple[str, ...]
) -> None:
    """`node` trained a new model under the old name, the others said that there was no model."""
    for wanted in ("is damaged (", "newer version"):
        capsys.readouterr()
        assert cli.run_command_line([*typed]) == 1
        said = capsys.readouterr().err
        assert wanted in said
        assert str(home.models / "kim" / "model.json") in said
        assert said.count("\n") == 1
        newer(home)
    assert [path.name for path in home.models.iterdir()] == ["kim"]


async def test_the_dashboard_starts_no_node_over_a_damaged_record(home: Home) -> None:
    with pytest.raises(AppError, match=r"model\.json is damaged .* runs check Kim --repair"):
        await supervisor.launch_node(home, [])


def test_a_damaged_model_keeps_its_name(home: Home) -> None:
    for name in ("kim", "KIM"):
        with pytest.raises(UsageError, match="There is a model"):
            store.create_model_folder(home, name, store.RunConfig())
    assert store.unused_name("kim", store.taken_model_names(home)) == "kim-2"
    (home.models / "kim" / "model.json").write_bytes(bytes(300))  # what a crash leaves on some file systems
    assert store.unused_name("kim", store.taken_model_names(home)) == "kim-2"


def test_a_model_that_was_used_later_goes_on(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the one used last is meant: a damaged one that lay still since is not it."""
    assert cli.run_command_line(["new", "eve", "--base", "fake", *FAKE]) == 0
    assert store.find_model(home).name == "eve"
    assert cli.run_command_line(["models"]) == 0
    assert "is damaged (" in capsys.readouterr().err


def test_a_damaged_record_is_made_anew_of_the_journal(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The same model of the same base, tasks and difficulty, which trains on; the damaged file is kept."""
    record = home.models / "kim" / "model.json"
    damaged = record.read_bytes()
    assert cli.run_command_line(["runs", "check"]) == 1
    assert "Mend it: sapo-desktop runs check Kim --repair" in capsys.readouterr().out
    assert cli.run_command_line(["runs", "check", "kim", "--repair"]) == 0
    assert "lengths and more are as in your settings" in capsys.readouterr().out
    assert record.with_name("model.json.damaged").read_bytes() == damaged
    made = store.find_model(home, "Kim")
    assert (made.record.base, made.config.tasks, made.config.preset) == ("fake", ("basic_arithmetic",), "hard")
    assert (made.config.group_size, made.config.method, made.rounds_done) == (4, "full", 1)
    assert cli.run_command_line(["node", "Kim", "--rounds", "2"]) == 0
    assert store.find_model(home, "Kim").rounds_done == 2


def test_a_mended_model_keeps_the_name_its_record_has(home: Home, trained: Path) -> None:
    """Also where the journal has an earlier one."""
    record = home.models / "kim" / "model.json"
    shutil.copyfile(trained / record.relative_to(home.config), record)
    assert cli.run_command_line(["models", "rename", "Kim", "ada"]) == 0
    record.write_bytes(record.read_bytes()[:300])
    assert cli.run_command_line(["runs", "check", "ada", "--repair"]) == 0
    assert store.find_model(home).name == "ada"


def test_a_record_that_cannot_be_read_back_is_never_put_in_the_place_of_a_good_one(home: Home) -> None:
    one = store.create_model_folder(home, "eve", store.RunConfig())
    before = (one.folder / store.RECORD).read_bytes()
    endless = msgspec.structs.replace(one.config, disk_budget_gb=float("inf"))
    with pytest.raises(AppError, match="stays as it was"):
        store.write_model_record(one.folder, msgspec.structs.replace(one.record, config=endless))
    assert [path.name for path in one.folder.iterdir()] == [store.RECORD]
    assert (one.folder / store.RECORD).read_bytes() == before


def test_a_lost_record_is_made_anew(home: Home) -> None:
    """Also where a checkpoint does not tell its rank."""
    (home.models / "kim" / "model.json").unlink()
    for engine in (home.models / "kim").glob("checkpoints/round-*/engine"):
        (engine / "state.json").write_text("[" * 100_000)
    assert cli.run_command_line(list(ROUND)) == 1
    assert cli.run_command_line(["runs", "check", "--repair"]) == 0
    assert store.find_model(home).name == "Kim"


def test_what_a_newer_version_wrote_is_not_made_anew(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    newer(home)
    assert cli.run_command_line(["runs", "check", "--repair"]) == 1
    assert "newer version" in capsys.readouterr().err
    assert json.loads((home.models / "kim" / "model.json").read_bytes())["format"] == store.FORMAT + 1


def test_without_a_journal_a_record_cannot_be_made_anew(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home.models / "kim" / "journal.db").unlink()
    assert cli.run_command_line(["runs", "check", "--repair"]) == 1
    assert "holds no journal of its training" in capsys.readouterr().err
