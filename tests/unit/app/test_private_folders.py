"""What lies on the disk is this account's: folders that others cannot read, and sockets in a folder that nobody else made."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_desktop import cli
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's")


def test_the_folders_of_an_installation_are_its_owners_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of private tasks, rated answers and logs lie in them; the umask of most systems lets everybody read."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    before = os.umask(0o022)
    try:
        home = Home.find()
        home.data.mkdir(parents=True)  # as earlier versions left it
        home.config.chmod(0o700)
        home.prepare()
    finally:
        os.umask(before)
    for folder in (home.config, home.data, home.models, home.cache, home.logs, home.runtime):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


@pytest.mark.parametrize("verb", ["status", "invite", "swarm"])
def test_a_folder_that_another_account_made_in_advance_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """A long home gets a folder under the temporary one, whose name can be told in advance: whoever makes it first could answer
    as the node, or name another coordinator whose invites are then handed out."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / ("long" * 30)))
    runtime = Home.find().runtime
    assert runtime.parent == tmp_path
    runtime.mkdir()
    assert Home.find().runtime == runtime
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(AppError, match="belongs to another account"):
        Home.find()
    assert cli.run_command_line([verb]) == 1
    assert "belongs to another account" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a", "space and é", "空" * 40, "long" * 30, "é" * 43])
def test_a_sockets_path_fits_however_long_the_home_is_and_is_no_other_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """macOS takes 104 bytes with the end of the string, Linux 108; letters outside ASCII take several."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path)[:40])
    sockets = []
    for home in (tmp_path / name, tmp_path / f"{name}2"):
        monkeypatch.setenv("SAPO_HOME", str(home))
        sockets.append(Home.find().socket)
    assert all(len(os.fsencode(path)) < 104 for path in sockets)
    assert sockets[0] != sockets[1]


def test_engines_keep_what_they_can_make_again_where_the_app_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ~ that no shell has replaced (a unit, a .env file) is the home folder, not a folder of that name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SAPO_HOME", "~/portable")
    assert cache_folder() == Home.find().cache == tmp_path / "portable" / "cache"


def test_a_runtime_folder_that_is_not_there_yet_is_made_as_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of mode 0755 it is ignored from the second command on, and no command finds the node of the first."""
    monkeypatch.delenv("SAPO_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    first = Home.find()
    first.prepare()
    assert Home.find() == first
