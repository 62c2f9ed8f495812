"""What a person types that cannot work: what is said, and that nothing is worse afterwards. Every verb is a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.node_process import sapo
from tests.support.trained_models import random_model

from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store

LONG_S = 240


def kept_device(home: Path) -> str:
    """The device in the record of the one model."""
    return store.find(Home(home, home / "data", home, home, home)).config.device


def test_a_device_that_failed_is_not_kept_in_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the torch engine is not installed")
    if torch.cuda.is_available():
        pytest.skip("cuda works here")
    node = ("node", "--silo", "--local-groups", "2", "--quiet")
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
    assert sapo(tmp_path / "home", "new", "mine", "--base", str(own)).returncode == 0
    monkeypatch.chdir(tmp_path)
    shown = sapo(tmp_path / "home", "models", "show", "own")
    assert "A folder? Write ./own" in shown.stderr
