"""Sign what a release consists of, and check it, with minisign (Ed25519; Debian and Homebrew: minisign):

    python packaging/sign_release.py sign DIST --key FILE         # FILE.minisig beside every file of DIST
    python packaging/sign_release.py verify DIST --public KEY     # what whoever installs does

The signed comment names the version and the file, so that an older file, or another one of the same release, is refused
under a wrong name. Exit code 1: something is not signed as it should be.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from release_files import project

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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, option in (("sign", "--key"), ("verify", "--public")):
        given = verbs.add_parser(verb)
        given.add_argument("folder", type=Path)
        given.add_argument(option, required=True, type=Path if verb == "sign" else str)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "sign":
            print("signed: " + ", ".join(path.name for path in sign(chosen.folder, chosen.key)))
        else:
            print("as signed: " + ", ".join(path.name for path in verify(chosen.folder, chosen.public)))
    except NotSigned as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
