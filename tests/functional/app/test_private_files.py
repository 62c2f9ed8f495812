"""What the app keeps is its owner's only, whatever the shell's umask; what a person names a place for goes by that umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.node_process import FAKE, sapo

from sapo_backends.checkpoints import hub_cache
from sapo_desktop.commands.nodes.dashboard import run_verb

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """As most systems have it: everybody reads."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [
        str(path) for path in folder.rglob("*") if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


async def test_nothing_of_a_node_is_open_to_other_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models, checkpoints, evaluations, logs and settings; figures for a folder of the person's own are as the shell says, also
    from a verb that the dashboard in lines runs."""
    home, mine = tmp_path / "home", tmp_path / "mine"
    home.mkdir(0o700)
    mine.mkdir()
    done = sapo(home, "node", *FAKE[:-1], "1", "--eval-items", "1", "--rounds", "1", "--local-groups", "2")
    assert done.returncode == 0, done.stderr
    assert sapo(home, "config", "set", "ui.theme", "sapo-light").returncode == 0
    assert (home / "data" / "models" / "my-model" / "evaluations").is_dir()
    assert open_to_others(home) == []
    assert sapo(home, "models", "figures", "-o", str(mine / "figures.csv")).returncode == 0
    assert stat.S_IMODE((mine / "figures.csv").stat().st_mode) == 0o644
    monkeypatch.setenv("SAPO_HOME", str(home))
    assert await run_verb(["models", "figures", "-o", str(mine / "typed.csv")]) == 0
    assert stat.S_IMODE((mine / "typed.csv").stat().st_mode) == 0o644


def test_a_base_in_a_cache_that_others_read_is_open_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HOME may be one for all accounts of a machine."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    os.umask(0o077)
    for mode, kept in ((0o755, 0o644), (0o700, 0o600)):
        tmp_path.chmod(mode)
        name = f"me/{mode:o}"
        hub_cache.blob_path(name, "ab").parent.mkdir(parents=True)
        hub_cache.blob_path(name, "ab").touch()
        file = hub_cache.add_to_snapshot(name, "commit", "config.json", "ab")
        hub_cache.update_main_ref(name, "commit")
        assert stat.S_IMODE(file.stat().st_mode) == kept
        assert {stat.S_IMODE(p.stat().st_mode) for p in (hub_cache.repository_folder(name), file.parent)} == {mode}
