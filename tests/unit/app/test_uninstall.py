"""Uninstalling: everything that the app made goes, secrets first of all, and nothing that would make it anew stays."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from sapo_backends.checkpoints import hub_cache
from sapo_desktop import cli
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import tokens
from sapo_desktop.services.machine import login
from sapo_desktop.services.models import endpoint
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.personal_data import uninstall
from sapo_desktop.services.swarms import hosting, membership, trial
from sapo_desktop.services.tasks import judging
from sapo_desktop.settings import editing
from sapo_swarm.protocol import identity


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With the folders as Linux has them: settings and data in different ones, nothing told by the environment."""
    for name in (*(name for name in os.environ if name.startswith(("XDG_", "HF_"))), "SAPO_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    found = Home.find()
    found.prepare()
    return found


class Ring:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.held = {("mail", "me"): "password"}

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


class Locked(Ring):
    def delete_password(self, service: str, username: str) -> None:
        raise RuntimeError("locked")


@pytest.fixture(autouse=True)
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """Never the keyring of whoever runs the tests."""
    made = Ring()
    monkeypatch.setattr(identity, "_system_keyring", lambda: made)
    return made


def uninstalled() -> int:
    return cli.run_command_line(["uninstall", "--data", "--yes"])


def test_no_secret_of_the_person_stays_behind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_system_keyring", lambda: None)
    editing.apply_preset(home.settings, "eco")
    tokens.save_hub_token(home, "hf_token")
    judging.keep_key(home, "sk-key")
    endpoint.read_or_make(home.config / "endpoint-token")
    trial.begin_trial(home.invite, "swarm")
    (home.config / f".{tokens.NAME}.secret.0123abcd.partial").touch()
    assert uninstalled() == 0
    assert not home.config.exists()


def test_no_secret_stays_in_the_keyring(home: Home, ring: Ring, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed before anybody says yes, and nothing of another program is touched."""
    membership.load_identity(home)
    tokens.save_hub_token(home, "hf_token")
    judging.keep_key(home, "sk-key")
    assert cli.run_command_line(["uninstall"]) == 2
    said = capsys.readouterr().out
    assert all(f"sapo-desktop, {name}" in said for name in ("node-", "hub-token-", "judge-key-"))
    assert len(ring.held) == 4
    assert uninstalled() == 0
    assert ring.held == {("mail", "me"): "password"}


def test_two_homes_with_one_keyring_are_two_nodes_and_uninstalling_one_leaves_the_others_key(
    home: Home, ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = membership.load_identity(home).identity.node
    tokens.save_hub_token(home, "hf_token")
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "ada"))
    ada = Home.find()
    ada.prepare()
    assert membership.load_identity(ada).identity.node != mine
    assert tokens.load_hub_token(ada) is None
    assert len(ring.held) == 4
    assert uninstalled() == 0
    assert not ada.config.exists()
    assert membership.load_identity(home).identity.node == mine
    assert tokens.load_hub_token(home) == "hf_token"
    assert len(ring.held) == 3


def test_secrets_that_cannot_be_removed_are_named(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = Locked()
    monkeypatch.setattr(identity, "_system_keyring", lambda: locked)
    membership.load_identity(home)
    assert uninstalled() == 1
    assert "keyring does not answer (locked)" in capsys.readouterr().err
    assert home.data.exists()
    monkeypatch.setattr(Locked, "get_password", Locked.delete_password)
    assert uninstalled() == 0
    assert "Look there yourself for entries of sapo-desktop" in capsys.readouterr().err


def test_bases_that_the_app_downloaded_are_listed_and_stay(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ours in (("me/mine", True), ("you/yours", False)):
        blobs = hub_cache.repository_folder(name) / "blobs"
        blobs.mkdir(parents=True)
        (blobs / f"part{hub_cache.PARTIAL}").write_bytes(bytes(2_000_000))
        if ours:
            (hub_cache.repository_folder(name) / hub_cache.LOCK).touch()
    assert uninstalled() == 0
    said = capsys.readouterr().out
    assert "2.0 MB  me/mine" in said
    assert str(hub_cache.repository_folder("me/mine")) in said
    assert "you/yours" not in said
    assert hub_cache.repository_folder("me/mine").exists()


def test_folders_that_lie_in_one_another_are_counted_once_and_gone(tmp_path: Path) -> None:
    """As on Windows."""
    data = tmp_path / "sapo-desktop"
    home = Home(data, data, data / "Cache", data / "Logs", tmp_path / "Temp")
    home.prepare()
    home.settings.write_text("# mine")
    home.node_log.write_text("12345")
    found = uninstall.find_created_paths(home)
    assert [one.path for one in found] == [data, home.runtime]
    assert "your settings" in found[0].what
    assert uninstall.remove_paths(home, found) == len("# mine") + len("12345")
    assert not data.exists()
    assert not home.runtime.exists()


def test_the_lock_is_let_go_before_its_folder_goes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows removes no file that is open."""
    let_go = NodeLock.__exit__

    def checked(lock: NodeLock, *error: object) -> None:
        assert home.lock.exists()
        let_go(lock, None, None, None)

    monkeypatch.setattr(NodeLock, "__exit__", checked)
    assert uninstalled() == 0
    assert not home.runtime.exists()
    assert not home.config.exists()  # nobody had settings of their own


def test_what_starts_at_login_or_hosts_a_swarm_is_ended_first(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with hosting.record_coordinator(home, hosting.this_process("mine", False, "")):
        assert uninstalled() == 1
    assert "sapo-desktop swarm stop" in capsys.readouterr().err
    unit = login.login_service(home).file
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert uninstalled() == 1
    assert "sapo-desktop service uninstall" in capsys.readouterr().err
    assert home.data.exists()
    unit.unlink()
    assert uninstalled() == 0
    assert not home.data.exists()


def test_where_nobody_can_answer_it_is_refused_in_the_words_of_every_other_verb(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert cli.run_command_line(["uninstall", "--data"]) == 1
    assert "for ever? Nobody can answer here: add --yes." in capsys.readouterr().err
    assert home.data.exists()
