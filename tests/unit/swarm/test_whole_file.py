"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_swarm import whole_file
from sapo_swarm.coordinator.store import sqlite_writer
from sapo_swarm.node.checkpoints import sync_tree
from sapo_swarm.node.journal import Journal
from sapo_swarm.whole_file import LEFT_S, half_written, write_atomically


def test_two_who_write_a_file_at_the_same_time_both_succeed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    texts = [letter * 5000 for letter in "ab"]

    def write(text: str) -> None:
        for _ in range(200):
            write_atomically(path, text, synced=False)
            assert path.read_text() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, texts))
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(("system", "refusals", "content"), [("nt", 2, "new"), ("nt", 4, "old"), ("posix", 1, "old")])
def test_a_file_that_another_process_reads_on_windows_is_replaced_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, refusals: int, content: str
) -> None:
    """Elsewhere an open file is no reason, so a refusal is one at once."""
    path = tmp_path / "config.toml"
    write_atomically(path, "old")
    refused = iter([PermissionError(13, "sharing violation")] * refusals)
    replace = Path.replace

    def sharing(new: Path, target: Path) -> Path:
        if error := next(refused, None):
            raise error
        return replace(new, target)

    monkeypatch.setattr(Path, "replace", sharing)
    monkeypatch.setattr(whole_file, "os", SimpleNamespace(**vars(os) | {"name": system}))
    with nullcontext() if content == "new" else pytest.raises(PermissionError):
        write_atomically(path, "new")
    assert path.read_text() == content
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_symbolic_link_to_settings_kept_elsewhere_stays_one(tmp_path: Path) -> None:
    kept, link = tmp_path / "dotfiles" / "config.toml", tmp_path / "config.toml"
    write_atomically(kept, "a = 1\n")
    link.symlink_to(kept)
    write_atomically(link, "a = 2\n")
    assert link.is_symlink()
    assert kept.read_text() == "a = 2\n"


def test_what_a_killed_process_left_goes_after_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "phrases.msgpack"
    young, old = (tmp_path / f".phrases.msgpack.{name}.partial" for name in ("young", "old"))
    other = tmp_path / ".phrases.other.partial"
    for one in (young, old, other):
        one.touch()
        past = one.stat().st_mtime - LEFT_S - 60
        os.utime(one, None if one is young else (past, past))
    write_atomically(path, b"")
    assert list(half_written(path)) == [young]
    assert other.exists()


def test_a_private_file_is_its_owners_only_whatever_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    write_atomically(path, "sapo://")
    path.chmod(0o644)
    write_atomically(path, "sapo://", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("able", [True, False])
def test_where_fcntl_has_f_fullfsync_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    """macOS leaves in the drive's cache what fsync wrote; a file system that cannot do more gets fsync."""
    fcntl = pytest.importorskip("fcntl")
    asked: list[str] = []

    def full(handle: int, command: int) -> int:
        asked.append(f"full {command}")
        if not able:
            raise OSError(45, "Operation not supported")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda handle: asked.append("fsync"))
    once = ["full 51"] if able else ["full 51", "fsync"]
    write_atomically(tmp_path / "tree" / "file", b"")
    assert asked == once
    sync_tree(tmp_path / "tree")
    assert asked == 3 * once, "the file and its folder"


def test_sqlite_is_told_the_same(tmp_path: Path) -> None:
    with (
        closing(sqlite_writer.open_database(tmp_path / "store")) as store,
        closing(Journal(tmp_path / "journal.db")) as journal,
    ):
        for connection in (store, journal._db):
            assert isinstance(connection, sqlite3.Connection)
            assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
