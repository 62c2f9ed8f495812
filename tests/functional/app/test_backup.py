"""Everything that is a person's goes into one archive and comes back; full disks and kills cost nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.support import own_tasks
from tests.support.backups import brought, content, home_at, yes

from sapo_desktop import cli
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.personal_data import archive, restore
from sapo_desktop.services.swarms import sharing
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol import identity as keystore
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import build_task_upload, unpack_task
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task

SETTINGS = b"[limits]\nnice = 7\n"
KEY = "ab" * 32
SWARM = "a" * 16


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "_system_keyring", lambda: None)


@pytest.fixture
def old(tmp_path: Path) -> Home:
    """A home with a trained model, an own task, settings, ratings, and a key."""
    home = home_at(tmp_path / "old")
    home.settings.write_bytes(SETTINGS)
    model = store.create_model_folder(home, "kim", RunConfig(model="fake", trainer="fake"))
    weights = model.folder / "checkpoints" / "round-000002" / "engine" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(range(256)) * 8)
    (model.folder / "exports").mkdir()
    (model.folder / "exports" / "large.gguf").write_bytes(b"made again")
    own_tasks.sums(home.tasks / "sums")
    (home.data / "ratings").mkdir()
    (home.data / "ratings" / "kim.jsonl").write_text("{}\n")
    (home.tasks / library.ALLOWED).write_text("a yes to code")
    (home.data / "identity").mkdir()
    (home.data / "identity" / "node.key").write_text(KEY + "\n")
    home.invite.write_text("an invite")
    return home


@pytest.fixture
def new(tmp_path: Path) -> Home:
    return home_at(tmp_path / "new")


def test_everything_that_is_a_persons_comes_back_but_not_what_is_made_again_or_said_anew(
    old: Home, new: Home, tmp_path: Path
) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600
    assert set(brought(new, saved.path).values()) == {"restored"}
    assert content(new.config) == {
        name: data
        for name, data in content(old.config).items()
        if not name.endswith(("node.key", "invite", library.ALLOWED, "large.gguf"))
    }
    assert store.find_model(new, "kim").rounds_done == 2


def test_a_task_accepted_without_held_out_rows_works_after_a_restore_and_can_be_accepted_again(
    old: Home, new: Home, tmp_path: Path
) -> None:
    upload = build_task_upload(read_task(own_tasks.sums(tmp_path / "theirs")), False)
    task = unpack_task(upload.offer, upload.packed)
    with own_tasks.library_in(old.tasks):
        sharing.accept_task(old, SWARM, upload.offer, task)
    brought(new, archive.create_backup(old, tmp_path / "mine.tar").path)
    with own_tasks.library_in(new.tasks):
        assert library.load_task("theirs").train == task.train
        assert not library.has_shared_version("theirs", SWARM)
        sharing.accept_task(new, SWARM, upload.offer, task)
        assert library.has_shared_version("theirs", SWARM)


def test_a_second_restore_finds_everything_here_already(old: Home, new: Home, tmp_path: Path) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    brought(new, saved.path)
    before = content(new.config)
    assert set(brought(new, saved.path, replace=yes).values()) == {"is here already"}
    assert content(new.config) == before


def test_keys_travel_only_where_both_sides_say_so_and_stay_readable_by_their_owner_only(
    old: Home, new: Home, tmp_path: Path
) -> None:
    without = archive.create_backup(old, tmp_path / "without.tar")
    assert not [entry for entry in without.manifest.files if archive.is_key(entry.name)]
    assert KEY.encode() not in without.path.read_bytes()
    saved = archive.create_backup(old, tmp_path / "with.tar", keys=True)
    assert "--keys" in brought(new, saved.path)["keys/node.key"]
    assert not (new.data / "identity").exists()
    brought(new, saved.path, keys=True)
    for path in (new.data / "identity" / "node.key", new.invite):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keystore.load_or_create(new.data / "identity").identity.secret.hex() == KEY


def test_a_key_that_the_keyring_holds_is_saved_and_another_one_there_is_asked_about(
    old: Home, new: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ring:
        def __init__(self, secret: str) -> None:
            self.secret = secret

        def get_password(self, service: str, username: str) -> str | None:
            return self.secret if (service, username) == (keystore.SERVICE, "node") else None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise AssertionError("a backup and a restore leave the keyring alone")

    def named(home: Home, secret: str) -> None:
        (home.data / "identity").mkdir(exist_ok=True)
        (home.data / "identity" / "node.id").write_text(Identity(bytes.fromhex(secret)).node)

    (old.data / "identity" / "node.key").unlink()
    ring = Ring(KEY)
    named(old, KEY)
    named(new, KEY)
    monkeypatch.setattr(keystore, "_system_keyring", lambda: ring)
    saved = archive.create_backup(old, tmp_path / "with.tar", keys=True)
    assert brought(new, saved.path, keys=True)["keys/node.key"] == "is here already"
    other = Ring("cd" * 32)
    named(new, other.secret)
    monkeypatch.setattr(keystore, "_system_keyring", lambda: other)
    assert "stays" in brought(new, saved.path, keys=True)["keys/node.key"]
    assert brought(new, saved.path, keys=True, replace=yes)["keys/node.key"] == "restored"
    assert keystore.load_or_create(new.data / "identity").identity.secret.hex() == KEY


def test_a_keyring_that_is_away_gives_no_archive_without_the_key_that_was_asked_for(old: Home, tmp_path: Path) -> None:
    identity = old.data / "identity"
    (identity / "node.key").rename(identity / "node.id")
    with pytest.raises(AppError, match="keyring"):
        archive.create_backup(old, tmp_path / "with.tar", keys=True)
    assert archive.create_backup(old, tmp_path / "without.tar").path.exists()


def test_a_model_that_was_trained_on_comes_in_beside_the_one_that_is_here(old: Home, tmp_path: Path) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    here = store.find_model(old, "kim").folder
    (here / "checkpoints" / "round-000003").mkdir()
    (here / "checkpoints" / "round-000003" / "weights").write_text("later")
    said = brought(old, saved.path)
    assert said["models/kim"] == "restored as kim-2, beside the one that is here"
    assert (store.find_model(old, "kim").rounds_done, store.find_model(old, "kim-2").rounds_done) == (3, 2)
    assert len({model.record.id for model in store.all_models(old)}) == 2


def test_nothing_is_replaced_without_a_yes_and_what_a_yes_replaces_is_kept(
    old: Home, new: Home, tmp_path: Path
) -> None:
    saved, asked = archive.create_backup(old, tmp_path / "mine.tar"), list[str]()
    new.settings.write_text("[limits]\nnice = 3\n")
    assert "stays" in brought(new, saved.path)[archive.SETTINGS]
    assert new.settings.read_text() == "[limits]\nnice = 3\n"
    assert brought(new, saved.path, replace=lambda item: not asked.append(item))[archive.SETTINGS] == "restored"
    assert asked == [archive.SETTINGS]
    assert new.settings.read_bytes() == SETTINGS
    (kept,) = (new.data / "replaced").rglob("config.toml")
    assert kept.read_text() == "[limits]\nnice = 3\n"


def test_what_cannot_be_read_takes_no_place(old: Home, new: Home, tmp_path: Path) -> None:
    (store.find_model(old, "kim").folder / store.RECORD).write_text('{"format": 99}')
    old.settings.write_text("[nonsense]\n")
    (old.tasks / "sums" / "task.toml").write_text("name = 3")
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    said = brought(new, saved.path, replace=yes)
    assert all("not restored" in said[item] for item in ("models/kim", archive.SETTINGS, "tasks/sums"))
    assert list(content(new.config)) == ["data/ratings/kim.jsonl"]


def test_no_archive_while_a_node_works_and_none_over_another_file(old: Home, tmp_path: Path) -> None:
    path = tmp_path / "mine.tar"
    with NodeLock(old.lock), pytest.raises(AppError, match="already running"):
        archive.create_backup(old, path)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(AppError, match="exists already"):
        archive.create_backup(old, path)
    assert path.read_text() == "mine"


def test_a_file_that_changes_while_it_is_saved_gives_no_archive(
    old: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = archive.file_sha256

    def changed(path: Path) -> str:
        found = digest(path)
        if path.name == "kim.jsonl":
            path.write_text("[]\n")
        return found

    monkeypatch.setattr(archive, "file_sha256", changed)
    with pytest.raises(AppError, match="changed while it was saved"):
        archive.create_backup(old, tmp_path / "mine.tar")
    assert not list(tmp_path.glob("*mine.tar*"))


@pytest.mark.parametrize("place", ["backup", "restore"])
def test_a_full_disk_costs_nothing(
    place: str, old: Home, new: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    before = content(tmp_path)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AppError, match="No space left"):
        archive.create_backup(old, tmp_path / "again.tar") if place == "backup" else brought(new, saved.path)
    assert content(tmp_path) == before


def test_too_little_room_is_said_before_anything_is_written(
    old: Home, new: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=10))
    with pytest.raises(AppError, match="are free"):
        brought(new, saved.path)
    with pytest.raises(AppError, match="are free"):
        archive.create_backup(old, tmp_path / "again.tar")
    assert content(new.config) == {}


def test_what_a_kill_left_goes_with_the_next_restore(old: Home, new: Home, tmp_path: Path) -> None:
    saved = archive.create_backup(old, tmp_path / "mine.tar")
    (new.data / ".restore-abc").mkdir()
    brought(new, saved.path)
    assert not list(new.data.glob(f"{restore.STAGING}*"))


def test_the_verbs_save_list_and_restore(
    old: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "mine.tar")
    monkeypatch.setenv("SAPO_HOME", str(old.config))
    assert cli.run_command_line(["backup", path]) == 0
    assert "models/kim" in (said := capsys.readouterr().out)
    assert "--keys" in said
    assert cli.run_command_line(["restore", path, "--list"]) == 0
    assert "tasks/sums" in capsys.readouterr().out
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "third"))
    assert cli.run_command_line(["restore", path]) == 0
    old.settings.write_text("[limits]\nnice = 1\n")
    monkeypatch.setenv("SAPO_HOME", str(old.config))
    assert cli.run_command_line(["restore", path]) == 1, "not all of it is here now"
    assert "--replace" in capsys.readouterr().out
    assert cli.run_command_line(["restore", str(old.settings)]) == 1
    assert "Traceback" not in capsys.readouterr().err
