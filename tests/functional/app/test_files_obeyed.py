"""Files that came from somewhere (a model's folder, settings, a base) are printed, never obeyed by the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sapo_assets import models
from sapo_desktop import cli

EVIL = "ev\x1b]52;c;x\x07il\x9b2J\u202e\u200b"
OBEYED = set("\x1b\x07\x9b\u202e\u200b")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model `one` from the small starter."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run(["new", "one", "--base", "starter-1m"]) == 0
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    cli.run(list(words))
    found = capsys.readouterr()
    return found.out + found.err


@pytest.mark.parametrize("words", [("models",), ("models", "--json"), ("models", "show", "one"), ("new", "two")])
def test_a_record_of_a_model_is_shown_as_plain_text(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    path = home / "data" / "models" / "one" / "model.json"
    record = json.loads(path.read_text("utf-8"))
    for change in ({"base": EVIL}, {"base": EVIL, "name": EVIL}):
        path.write_text(json.dumps({**record, **change}), "utf-8")
        assert not set(said(capsys, *words)) & OBEYED


@pytest.mark.parametrize("words", [("config", "get"), ("config", "get", "person.name")])
def test_settings_are_shown_as_plain_text(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    quoted = json.dumps(EVIL)
    (home / "config.toml").write_text(f"{quoted} = 1\n[person]\nname = {quoted}\n", "utf-8")
    text = said(capsys, *words)
    assert "il" in text
    assert not set(text) & OBEYED


def test_a_base_that_another_wrote_is_shown_as_plain_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its architecture stands in the card, and in the refusal of the library that reads it."""
    folder = Path(shutil.copytree(models()["starter-1m"], home / "base"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [EVIL], "model_type": EVIL}), "utf-8")
    text = said(capsys, "models", "show", str(folder))
    assert "architecture ev" in text
    assert not set(text) & OBEYED
