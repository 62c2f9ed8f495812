"""Signing a release: what was signed verifies, and nothing else does, by the program that whoever installs would use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script. A missing minisign is a failure under CI, else a skip with a sentence."""
    monkeypatch.syspath_prepend(str(PACKAGING))
    import sign_release

    if shutil.which("minisign") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(sign_release.MISSING)
        pytest.skip(sign_release.MISSING)
    return sign_release


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder as a build leaves it."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "sapo_desktop-1-py3-none-any.whl").write_bytes(os.urandom(5000))
    (folder / "requirements.lock").write_text("a==1\n")
    return folder


def test_what_was_signed_verifies_and_what_was_tampered_with_does_not(
    signing: ModuleType, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed byte, another key, another name, no signature: each is refused with the name of the file."""
    assert signing.main(["rehearse", str(built)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "signed and verified: requirements.lock, sapo_desktop-1-py3-none-any.whl"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "refused, one byte changed",
        "refused, another key",
        "refused, another name",
        "refused, no signature",
    ]


def test_an_older_file_is_not_taken_for_a_newer_one(
    signing: ModuleType,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its signature is good: it says which version it belongs to."""
    key, public = signing.new_key(tmp_path)
    monkeypatch.setattr(signing, "project", lambda: {"name": "sapo-desktop", "version": "0.0.9"})
    assert signing.main(["sign", str(built), "--key", str(key)]) == 0
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(PACKAGING))
    assert signing.main(["verify", str(built), "--public", public]) == 1
    assert "was signed as another file" in capsys.readouterr().err


def test_the_release_checklist_and_the_policy_name_the_commands() -> None:
    """What is promised is what the script does."""
    checklist = (PACKAGING.parent / "docs" / "how-to" / "release.md").read_text("utf-8")
    policy = (PACKAGING.parent / "SECURITY.md").read_text("utf-8")
    for verb in ("rehearse", "sign"):
        assert f"python packaging/sign_release.py {verb}" in checklist
    assert "minisign -V" in policy
    assert "sigstore" not in policy
