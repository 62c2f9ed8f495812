"""A base that was moved is known by its content, a relative path is found from everywhere, a pair goes on with its trainer's
weights, and another home directory has a lock of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import calm, environment, sapo

import sapo_assets
from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models.screen import settings_actions
from sapo_desktop.services.models.shelf import changes, history, keeping, store
from sapo_swarm.config import RunConfig
from sapo_swarm.resolve_run import resolve_run_config

QUICK = (
    *("--silo", "--trainer", "torch", "--tasks", "basic_arithmetic", "--local-groups", "1", "--group-size", "2"),
    *("--eval-every", "0", "--max-new-tokens", "4", "--precision", "float32", "--method", "lora"),
)


def test_a_moved_base_and_another_generator_go_on_with_the_same_model(tmp_path: Path) -> None:
    home, first, second = tmp_path / "home", tmp_path / "first", tmp_path / "second"
    shutil.copytree(sapo_assets.model_path("starter-1m"), first)
    calm(home)
    typed = subprocess.run(
        [sys.executable, "-m", "sapo_desktop", "node", "--model", "first", "--rounds", "1", *QUICK],
        env=environment(home), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert typed.returncode == 0, typed.stderr
    first.rename(second)
    lost = sapo(home, "node", "--rounds", "2")
    assert lost.returncode == 1
    assert f"was made from {first}, which is not there any more" in lost.stderr
    moved = sapo(home, "node", "--model", str(second), "--rounds", "2")
    assert moved.returncode == 0, moved.stderr
    assert "round    2/2" in moved.stdout
    other = sapo(home, "node", "--model", "starter", "--rounds", "3")
    assert other.returncode == 2
    assert "its weights would not fit" in other.stderr
    model = store.find_model(Home(home, home / "data", home, home, home))
    assert model.config.model == str(second), "the next start finds it there"
    paired = msgspec.structs.replace(model.config, trainer="llamacpp+torch")
    changes.refuse_other_identity(model, paired, model.config)
    kept, _ = resolve_run_config(paired, model.config, {"trainer": "llamacpp+torch"})
    assert kept.trainer == "llamacpp+torch"
    fake = sapo(home, "node", "--trainer", "fake", "--rounds", "3")
    assert fake.returncode == 2
    assert "that cannot become fake" in fake.stderr


def test_a_folder_that_is_typed_on_screen_4_or_in_the_first_questions_or_f2_is_kept_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """owner/name would be a model of the hub in the folder in which a node starts."""
    root, base = tmp_path / "home", tmp_path / "owner" / "name"
    home = Home(root, root / "data", root, root, root)
    home.prepare()
    shutil.copytree(sapo_assets.model_path("starter-1m"), base)
    monkeypatch.chdir(tmp_path)
    ann = keeping.create_model(home, "ann", RunConfig(model="owner/name"))
    assert (ann.config.model, ann.record.base) == (str(base), str(base))
    [bea] = first_run.first_model(FirstRunAnswers(model="owner/name"), home)
    assert store.find_model(home, bea).config.model == settings.load_settings(home.settings).run.model == str(base)
    settings_actions.change_model_setting(ann, "run.model", "owner/name")
    assert store.find_model(home, "ann").config.model == str(base)


def test_a_model_goes_on_with_another_trainer(tmp_path: Path) -> None:
    """A round in torch, one in MLX on the processor, one in torch again: one chain of weights."""
    pytest.importorskip("mlx.core", reason="the mlx engine is not installed")
    home = tmp_path / "home"
    calm(home)
    place = Home(home, home / "data", home, home, home)
    for number, trainer in enumerate(("auto", "mlx", "torch"), 1):
        done = sapo(home, "node", *("--model", "starter-1m", "--rounds", f"{number}"), *QUICK, "--trainer", trainer)
        assert done.returncode == 0, done.stderr
        assert f"round    {number}/{number}" in done.stdout
        session = history.last_session(store.find_model(place).folder)
        assert session is not None
        assert session.backend == ("torch" if trainer == "auto" else trainer)
    checked = sapo(home, "runs", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the runtime folder lies in the home directory there")
def test_other_home_directories_of_one_user_share_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAPO_HOME", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    locks = []
    for name in ("one", "two"):
        monkeypatch.setenv("HOME", str(tmp_path / name))
        locks.append(Home.find().lock)
    monkeypatch.setenv("HOME", os.path.expanduser(f"~{os.environ.get('USER') or 'root'}"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    locks.append(Home.find().lock)
    assert len(set(locks)) == 3
