"""Sign what a release consists of, and check it, with minisign (Ed25519; Debian and Homebrew: minisign):

    python packaging/sign_release.py sign DIST --key FILE         # FILE.minisig beside every file of DIST
    python packaging/sign_release.py verify DIST --public KEY     # what whoever installs does
    python packaging/sign_release.py rehearse                     # build, sign, verify, be refused; with a key for once

The signed comment names the version and the file, so that an older file, or another one of the same release, is refused
under a wrong name. Exit code 1: something is not signed as it should be.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from release_files import ROOT, project

SUFFIX = ".minisig"
MISSING = "minisign is not installed. Fix: apt-get install minisign (or brew install minisign)"


class NotSigned(Exception):
    """A file is not what was signed, or is not signed; the message says which one."""


def minisign(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it. Raises NotSigned where it is not installed."""
    program = shutil.which("minisign")
    if program is None:
        raise NotSigned(MISSING)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split())


def files(folder: Path) -> list[Path]:
    """What is signed: everything in the folder but signatures. Raises NotSigned for an empty one."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != SUFFIX)
    if not found:
        raise NotSigned(f"There is no file in {folder}.")
    return found


def comment(path: Path) -> str:
    """What the signature says beside the bytes: which file of which version they are."""
    return f"{project()['name']} {project()['version']} {path.name}"


def sign(folder: Path, key: Path) -> list[Path]:
    """A signature beside each file; minisign asks for the key's password where it has one. Raises NotSigned."""
    signed = files(folder)
    for path in signed:
        done = minisign("-S", "-s", key, "-m", path, "-t", comment(path))
        if done.returncode:
            raise NotSigned(f"{path.name} was not signed: {_said(done)}")
    return signed


def verify(folder: Path, public: str) -> list[Path]:
    """The files, all of them as they were signed with the key that belongs to `public`, under their names. Raises NotSigned."""
    checked = files(folder)
    for path in checked:
        done = minisign("-V", "-Q", "-P", public, "-m", path)
        if done.returncode:
            raise NotSigned(f"{path.name} is not what was signed: {_said(done) or 'its signature does not fit'}")
        if done.stdout.strip() != comment(path):
            raise NotSigned(f"{path.name} was signed as another file: {done.stdout.strip()}")
    return checked


def new_key(folder: Path) -> tuple[Path, str]:
    """A key pair without a password: the file of the secret one, the line of the public one. Raises NotSigned."""
    secret, public = folder / "secret.key", folder / "public.key"
    done = minisign("-G", "-W", "-s", secret, "-p", public)
    if done.returncode:
        raise NotSigned(f"No key was made: {_said(done)}")
    return secret, public.read_text("utf-8").splitlines()[-1]


def build(folder: Path) -> None:
    """The wheel of this checkout, and the lock that goes with it."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    shutil.copy(ROOT / "packaging" / "requirements.lock", folder)


def rehearse(folder: Path) -> None:
    """Sign and verify what lies in the folder, then see each kind of tampering refused. Raises NotSigned."""
    with tempfile.TemporaryDirectory() as keys:
        key, public = new_key(Path(keys))
        other = Path(keys) / "other"
        other.mkdir()
        sign(folder, key)
        print(f"signed and verified: {', '.join(path.name for path in verify(folder, public))}")
        victim = files(folder)[-1]
        signature, intact = victim.with_name(victim.name + SUFFIX), victim.read_bytes()
        refused("one byte changed", folder, public, lambda: victim.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1])))
        victim.write_bytes(intact)
        refused("another key", folder, new_key(other)[1], lambda: None)
        renamed = victim.with_name("renamed-" + victim.name)
        refused(
            "another name",
            folder,
            public,
            lambda: (victim.rename(renamed), signature.rename(renamed.with_name(renamed.name + SUFFIX))),
        )
        renamed.rename(victim)
        refused("no signature", folder, public, lambda: renamed.with_name(renamed.name + SUFFIX).unlink())


def refused(name: str, folder: Path, public: str, tamper: Callable[[], object]) -> None:
    """Raises NotSigned where the folder still verifies after that."""
    tamper()
    try:
        verify(folder, public)
    except NotSigned as error:
        print(f"refused, {name}: {error}")
        return
    raise NotSigned(f"{name}: it was taken all the same.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, option in (("sign", "--key"), ("verify", "--public")):
        given = verbs.add_parser(verb)
        given.add_argument("folder", type=Path)
        given.add_argument(option, required=True, type=Path if verb == "sign" else str)
    verbs.add_parser("rehearse").add_argument(
        "folder", type=Path, nargs="?", help="of built files; else they are built"
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "sign":
            print("signed: " + ", ".join(path.name for path in sign(chosen.folder, chosen.key)))
        elif chosen.verb == "verify":
            print("as signed: " + ", ".join(path.name for path in verify(chosen.folder, chosen.public)))
        else:
            with tempfile.TemporaryDirectory() as made:
                if chosen.folder is None:
                    build(Path(made))
                else:
                    shutil.copytree(chosen.folder, made, dirs_exist_ok=True)
                rehearse(Path(made))
    except NotSigned as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
