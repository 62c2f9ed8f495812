"""A folder whose weights were copied in part is told of before there is a model of it, from the headers alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file

import sapo_assets
from sapo_backends.checkpoints.safetensors_numpy import iter_tensors
from sapo_desktop import cli

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def in_shards(folder: Path) -> None:
    """The same weights in two files and an index, as large models are stored."""
    weights = dict(iter_tensors(folder))
    (folder / WHOLE).unlink()
    names = {name: SHARDS[number % 2] for number, name in enumerate(weights)}
    for shard in SHARDS:
        save_file({name: weights[name] for name in names if names[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def without_a_shard(folder: Path) -> None:
    in_shards(folder)
    (folder / SHARDS[1]).unlink()


def without_a_shard_and_the_index(folder: Path) -> None:
    without_a_shard(folder)
    (folder / INDEX).unlink()


def cut_at(size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / WHOLE, size)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(sapo_assets.model_path("starter-1m"), tmp_path / "base"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_at(1_000_000), f"{WHOLE} is damaged: it ends after 1,000,000 of 2,117,264 bytes. Copy or download"),
        (cut_at(500), f"{WHOLE} is damaged: it ends within its header. Copy or download"),
        (cut_at(0), f"{WHOLE} is damaged: it ends within its header. Copy or download"),
        (without_a_shard, f"base lacks {SHARDS[1]}. Copy or download"),
        (without_a_shard_and_the_index, f"base lacks {SHARDS[1]}. Copy or download"),
    ],
)
def test_weights_that_are_not_all_there_are_said_in_one_sentence(
    base: Path, damage: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(base)
    for verb in (("models", "show", str(base)), ("new", "kim", "--base", str(base))):
        assert cli.run_command_line(verb) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert cli.run_command_line(["models", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_weights_in_shards_that_are_all_there_are_a_base(base: Path) -> None:
    in_shards(base)
    assert cli.run_command_line(["new", "kim", "--base", str(base)]) == 0
    (base / INDEX).write_text("cut o")
    assert cli.run_command_line(["new", "leo", "--base", str(base)]) == 0, (
        "the names of the files say how many there are"
    )
