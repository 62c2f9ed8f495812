"""The lock of the application's dependencies: up to date, whole, and from one index."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "packaging" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked(lock: ModuleType) -> dict[str, tuple[str, list[str]]]:
    """name -> (newest version, hashes)."""
    found: dict[str, tuple[str, list[str]]] = {}
    for part in re.split(r"\n(?=[a-z0-9])", lock.LOCK.read_text("utf-8")):
        if named := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", part):
            found[named[1]] = (named[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", part))
    return found


def test_the_lock_was_made_from_the_dependencies_of_today(lock: ModuleType) -> None:
    first = lock.LOCK.read_text("utf-8").splitlines()[0]
    assert first.endswith(lock.fingerprint()), "make it again: python packaging/lock.py"


def test_every_dependency_is_locked_to_a_version_that_it_allows(lock: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(one for name in lock.EXTRAS for one in project["optional-dependencies"][name]),
    ]
    found = locked(lock)
    for requirement in map(Requirement, wanted):
        version, _ = found[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_every_locked_package_has_its_hashes(lock: ModuleType) -> None:
    """pip refuses the whole file otherwise, and a package that nobody hashed could be replaced."""
    found = locked(lock)
    assert len(found) > 50
    assert [name for name, (_, hashes) in found.items() if not hashes] == []
    assert "--" not in re.sub(r"--hash=sha256:[0-9a-f]{64}", "", lock.LOCK.read_text("utf-8")), "no options"


def test_no_second_index_can_be_confused_with_the_first() -> None:
    """With two indexes pip takes the newer version of a name from either: whoever owns the name on the other one is run."""
    for path in [
        *(ROOT / "packaging").glob("*"),
        ROOT / "Makefile",
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]:
        if path.is_file():
            assert "--extra-index" + "-url" not in path.read_text("utf-8"), path
