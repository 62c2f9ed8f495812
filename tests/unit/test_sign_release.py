"""Signing a release: what was signed verifies, and nothing else does, by the program that whoever installs would use."""

from __future__ import annotations

import os
import shutil
import subprocess
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


def new_key(folder: Path) -> tuple[Path, str]:
    """A key pair without a password: the file of the secret one, the line of the public one."""
    folder.mkdir()
    secret, public = folder / "secret.key", folder / "public.key"
    subprocess.run(["minisign", "-G", "-W", "-s", secret, "-p", public], check=True, capture_output=True)
    return secret, public.read_text("utf-8").splitlines()[-1]


def test_what_was_signed_verifies_and_what_was_tampered_with_does_not(
    signing: ModuleType, built: Path, tmp_path: Path
) -> None:
    """A changed byte, another key, another name, no signature: each is refused with the name of the file."""
    key, public = new_key(tmp_path / "key")
    wheel = built / "sapo_desktop-1-py3-none-any.whl"
    signature, intact = built / f"{wheel.name}.minisig", wheel.read_bytes()
    signing.sign(built, key)
    assert signing.verify(built, public) == [built / "requirements.lock", wheel]
    wheel.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(signing.NotSigned, match=f"{wheel.name} is not what was signed"):
        signing.verify(built, public)
    wheel.write_bytes(intact)
    with pytest.raises(signing.NotSigned, match=r"requirements\.lock is not what was signed"):
        signing.verify(built, new_key(tmp_path / "other")[1])
    renamed = wheel.rename(built / "renamed.whl")
    signature = signature.rename(built / "renamed.whl.minisig")
    with pytest.raises(signing.NotSigned, match=r"renamed\.whl was signed as another file"):
        signing.verify(built, public)
    renamed.rename(wheel)
    signature.unlink()
    with pytest.raises(signing.NotSigned, match=f"{wheel.name} is not what was signed"):
        signing.verify(built, public)


def test_an_older_file_is_not_taken_for_a_newer_one(
    signing: ModuleType,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its signature is good: it says which version it belongs to."""
    key, public = new_key(tmp_path / "key")
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
    for verb in ("sign", "verify"):
        assert f"python packaging/sign_release.py {verb}" in checklist
    assert "minisign -V" in policy
    assert "sigstore" not in policy
