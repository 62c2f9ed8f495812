"""Started in a folder that came from somewhere, the app imports nothing that lies in it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sapo_backends.llamacpp_backend import loading as llama_probe
from sapo_backends.measure import probe
from sapo_desktop.commands.nodes.dashboard import run_verb
from sapo_desktop.paths import own_command

NAMES = ("msgspec", "json", "contextlib", "asyncio", "sapo_backends")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules in it that leave a file behind when they are imported."""
    folder = tmp_path / "task from somewhere"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit(0)\n")
    paths = [place for place in sys.path if place and Path(place) != Path.cwd()]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(sys, "path", paths)
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    return folder


def test_a_verb_started_in_a_strange_folder_imports_nothing_from_it(planted: Path) -> None:
    done = subprocess.run([*own_command(), "paths"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, (planted / "ran").exists()) == (0, False), done.stderr
    assert str(planted.parent / "home") in done.stdout


def test_a_verb_of_the_palette_and_the_probes_import_nothing_from_the_folder(planted: Path) -> None:
    assert asyncio.run(run_verb(["paths"])) == 0
    assert probe.limits_in_child("numpy", 1).multiply, "the child did its work"
    llama_probe._run(planted / "none.gguf", 1)
    assert not (planted / "ran").exists()
