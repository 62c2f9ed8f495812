"""Archives that were made to deceive, cut or damaged restore nothing, and never anything but what was saved."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.backups import brought, content, home_at, yes

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.personal_data import archive
from sapo_swarm.protocol import identity
from sapo_swarm.tasks.own import library


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(identity, "_system_keyring", lambda: None)
    return home_at(tmp_path / "new")


class Member(NamedTuple):
    """Of a hostile archive. kind: of tar; claims: what the manifest says in place of the truth."""

    name: str
    data: bytes = b"x"
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    claims: Mapping[str, Any] = MappingProxyType({})


def hostile(path: Path, members: list[Member], manifest: dict[str, Any] | bytes | None = None) -> Path:
    """An archive that is built to deceive."""
    entries = [
        {"name": m.name, "size": len(m.data), "sha256": hashlib.sha256(m.data).hexdigest(), **m.claims} for m in members
    ]
    told = {"format": 1, "made": 1.0, "version": "0", "files": entries}
    head = manifest if isinstance(manifest, bytes) else msgspec.json.encode(told | (manifest or {}))
    with tarfile.open(path, "w") as tar:
        for member in (Member(archive.MANIFEST, head), *members):
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname = member.kind, member.link
            info.size = len(member.data) if member.kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(member.data))
    return path


LURE = "ratings/kim.jsonl"
HOSTILE: dict[str, list[Member]] = {
    "a path upwards": [Member("models/../../../evil")],
    "a path upwards at once": [Member("../evil")],
    "an absolute path": [Member("/tmp/evil-sapo")],
    "a drive": [Member("models/C:/evil")],
    "backslashes": [Member("models\\..\\..\\evil")],
    "an unknown place": [Member("logs/evil")],
    "a consent": [Member(f"tasks/{library.ALLOWED}")],
    "a file beside the models": [Member("models/evil")],
    "a hidden folder": [Member("models/.partial-x/model.json")],
    "a device of Windows": [Member("tasks/nul/task.toml")],
    "a name of control characters": [Member("tasks/a\x1b[2J/task.toml")],
    "a name that is too long": [Member("models/kim/" + "a/" * 200 + "b")],
    "a name twice": [Member(LURE), Member(LURE)],
    "names that one disk takes for one": [Member("tasks/a/b"), Member("tasks/A/B")],
    "a file that is a folder too": [Member("models/kim/a"), Member("models/kim/a/b")],
    "a link": [Member(LURE, b"", tarfile.SYMTYPE, "/etc/passwd")],
    "a hard link": [Member(LURE, b"", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [Member(LURE, b"", tarfile.CHRTYPE)],
    "a pipe": [Member(LURE, b"", tarfile.FIFOTYPE)],
    "a folder": [Member(LURE, b"", tarfile.DIRTYPE)],
    "another content": [Member(LURE, b"evil", claims={"sha256": "0" * 64})],
    "a smaller claim": [Member(LURE, b"evil" * 9, claims={"size": 1})],
    "a larger claim": [Member(LURE, b"evil", claims={"size": 2**40})],
    "a negative size": [Member(LURE, b"evil", claims={"size": -1})],
    "no digest": [Member(LURE, b"evil", claims={"sha256": "../x"})],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_restores_nothing(what: str, new: Home, tmp_path: Path) -> None:
    path = hostile(tmp_path / "evil.tar", HOSTILE[what])
    outside = content(tmp_path)
    with pytest.raises(AppError):
        brought(new, path, keys=True, replace=yes)
    assert content(tmp_path) == outside


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        {"format": 2},
        {"format": -1},
        {"format": "1"},
        {"files": 3},
    ],
)
def test_a_manifest_that_is_none_restores_nothing(manifest: Any, new: Home, tmp_path: Path) -> None:
    with pytest.raises(AppError):
        brought(new, hostile(tmp_path / "evil.tar", [Member(LURE)], manifest), replace=yes)
    assert content(new.config) == {}


def test_a_member_beside_the_manifest_and_one_too_few_restore_nothing(new: Home, tmp_path: Path) -> None:
    for files in ([], [{"name": name, "size": 1, "sha256": "0" * 64} for name in (LURE, "ratings/b.jsonl")]):
        with pytest.raises(AppError):
            brought(new, hostile(tmp_path / "evil.tar", [Member(LURE)], {"files": files}), replace=yes)
    assert content(new.config) == {}


def test_headers_that_claim_gigabytes_get_none(new: Home, tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, 2**33 - 1
        path = tmp_path / "evil.tar"
        path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)
        with pytest.raises(AppError, match="too large"):
            brought(new, path)


@given(st.data())
def test_an_archive_with_any_damage_is_refused_or_restores_what_was_saved(data: st.DataObject) -> None:
    """Cut anywhere, or with any bytes changed: never another content, never a traceback."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = home_at(folder / "new")
        path = hostile(folder / "a.tar", [Member(LURE, b"{}\n" * 400)])
        whole = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            del whole[data.draw(st.integers(0, len(whole))) :]
        for _ in range(data.draw(st.integers(0, 3))):
            if whole:
                whole[data.draw(st.integers(0, min(len(whole), 4096) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(whole)
        try:
            brought(home, path)
        except AppError:
            assert content(home.config) == {}
        else:
            assert content(home.config) == {"data/ratings/kim.jsonl": b"{}\n" * 400}
