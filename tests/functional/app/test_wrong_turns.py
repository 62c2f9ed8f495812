"""What a person types that cannot work: what is said, and that nothing is worse afterwards. Every verb is a real process."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.support.node_process import sapo
from tests.support.swarm_process import coordinator
from tests.support.trained_models import random_model

from sapo_desktop import cli
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_swarm.config import RunConfig
from sapo_swarm.node.journal import Journal

LONG_S = 240


def kept_device(home: Path) -> str:
    """The device in the record of the one model."""
    return store.find_model(Home(home, home / "data", home, home, home)).config.device


def test_a_device_that_failed_is_not_kept_in_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the torch engine is not installed")
    if torch.cuda.is_available():
        pytest.skip("cuda works here")
    node = ("node", "--silo", "--local-groups", "2", "--eval-every", "0", "--quiet")
    failed = sapo(tmp_path, *node, "--model", "starter-1m", "--rounds", "1", "--device", "cuda", timeout=LONG_S)
    assert failed.returncode
    assert "sapo-desktop node NAME --device auto" in failed.stderr
    assert kept_device(tmp_path) == "auto"
    done = sapo(tmp_path, *node, "my-model", "--rounds", "1", "--device", "cpu", timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert kept_device(tmp_path) == "cpu"
    assert sapo(tmp_path, *node, "--device", "cuda", "--rounds", "2", timeout=LONG_S).returncode
    assert kept_device(tmp_path) == "cpu"


def test_a_folder_without_a_tokenizer_makes_no_model_and_show_says_how_a_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="the torch engine is not installed")
    own = random_model(tmp_path / "own", "llama")
    (own / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    refused = sapo(tmp_path / "home", "new", "mine", "--base", str(own))
    assert (refused.returncode, "has no tokenizer.json" in refused.stderr) == (1, True)
    (tmp_path / "tokenizer.json").rename(own / "tokenizer.json")
    assert sapo(tmp_path / "home", "new", "Mine", "--base", str(own)).returncode == 0
    monkeypatch.chdir(tmp_path)
    shown = sapo(tmp_path / "home", "models", "show", "own")
    assert "A folder? Write ./own" in shown.stderr
    monkeypatch.chdir(tmp_path / "home" / "data" / "models")
    assert sapo(tmp_path / "home", "models", "show", "mine").stdout.startswith("Mine"), "not its folder, mine/"


async def test_a_taken_port_a_port_that_is_none_and_an_invite_with_another_letter_are_one_sentence_each(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        taken = await asyncio.to_thread(sapo, tmp_path / "other", "coordinator", "--port", str(port))
    assert taken.stderr == f"sapo-desktop: Port {port} is taken. Name another: --port {(port + 1) % 65536}\n"
    none = await asyncio.to_thread(sapo, tmp_path / "other", "coordinator", "--port", "99999")
    assert none.returncode == 2
    assert none.stderr.endswith("Allowed: whole number, 0 to 65535.\n")
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        mistyped = invite.strip()[:-1] + ("b" if invite.strip()[-1] == "a" else "a")
        node = ("node", "--trainer", "fake", "--model", "fake", "--rounds", "1", "--join", f"{mistyped}.")
        refused = await asyncio.to_thread(sapo, tmp_path / "node", *node, timeout=LONG_S)
    assert refused.returncode == 2
    assert "The invite is for another swarm or mistyped; copy the whole line." in refused.stderr


def test_a_folder_is_no_file_of_rows(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    done = sapo(tmp_path, "tasks", "new", str(tmp_path / "rows"))
    assert done.returncode == 2
    assert "is a folder; name a .csv, .tsv, .jsonl or .parquet file." in done.stderr


def test_a_recording_and_groups_that_are_not_there_are_one_sentence_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["replay", "nosuch"]) == 2
    assert "There is no file 'nosuch'. There is no model yet. Make one" in capsys.readouterr().err
    model = store.create_model_folder(Home.find(), "such", RunConfig(model="fake", trainer="fake"))
    assert cli.run_command_line(["replay", "nosuch"]) == 2
    assert "There is no file 'nosuch'. There is no model 'nosuch'. Did you mean 'such'?" in capsys.readouterr().err
    (tmp_path / "such").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("such", "Such", model.record.id):
        assert cli.run_command_line(["replay", name]) == 1
        assert f"There is no journal at {model.folder / 'journal.db'}" in capsys.readouterr().err
    Journal(tmp_path / "journal.db").close()
    assert cli.run_command_line(["rollouts", str(tmp_path / "journal.db"), "--task", "foo"]) == 2
    assert "There is no group of the task 'foo'. No groups yet." in capsys.readouterr().err
