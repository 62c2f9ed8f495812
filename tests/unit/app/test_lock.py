"""The locks of the application's dependencies and of a checkout's tools: up to date, whole, from one index, and obeyed."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from sapo_backends import packages

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
HASHES = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    return script("lock")


@pytest.fixture
def setup_venv(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    return script("setup_venv")


@pytest.fixture(params=["app", "tools"])
def made(request: pytest.FixtureRequest, lock: ModuleType) -> tuple[Path, tuple[str, ...], list[str]]:
    """A lock, the extras that it is of, and what it must have."""
    optional = PROJECT["project"]["optional-dependencies"]
    if request.param == "app":
        extras, wanted = lock.EXTRAS, PROJECT["project"]["dependencies"]
    else:
        extras, wanted = lock.TOOL_EXTRAS, [lock.BUILD, *PROJECT["build-system"]["requires"]]
    path = lock.LOCK if request.param == "app" else lock.TOOLS
    return path, extras, [*wanted, *(one for name in extras for one in optional[name])]


def test_a_lock_was_made_from_the_dependencies_of_today(
    lock: ModuleType, made: tuple[Path, tuple[str, ...], list[str]]
) -> None:
    first = made[0].read_text("utf-8").splitlines()[0]
    assert first.endswith(lock.fingerprint(made[1])), "make it again: python packaging/lock.py"


def test_every_dependency_is_locked_to_a_version_that_it_allows(
    setup_venv: ModuleType, made: tuple[Path, tuple[str, ...], list[str]]
) -> None:
    found = dict(re.split("==", package) for package in setup_venv.locked())
    for requirement in map(Requirement, made[2]):
        version = found[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_every_locked_package_has_its_hashes(lock: ModuleType, made: tuple[Path, tuple[str, ...], list[str]]) -> None:
    """pip refuses the whole file otherwise, and a package that nobody hashed could be replaced."""
    text = made[0].read_text("utf-8")
    assert len(lock.blocks(text)) > 30
    assert [block for block in lock.blocks(text) if not HASHES.search(block)] == []
    assert "--" not in HASHES.sub("", text), "no options"


def test_the_locks_have_one_version_of_a_package_for_a_python(setup_venv: ModuleType) -> None:
    """pip refuses two: those that are there twice are for different versions of Python."""
    named: dict[str, list[str]] = {}
    for package, block in setup_venv.locked().items():
        named.setdefault(package.partition("==")[0], []).append(block.splitlines()[0])
    twice = [lines for lines in named.values() if len(lines) > 1]
    assert all("python_full_version" in line for lines in twice for line in lines)


@pytest.mark.parametrize(
    ("system", "nvidia", "build"),
    [
        ("Linux", False, "cpu"),
        ("Linux", True, ""),
        ("Darwin", False, ""),
        ("Windows", False, ""),
        ("Windows", True, "cu130"),
    ],
)
def test_a_checkout_installs_nothing_without_hashes_but_itself_and_builds_of_torch_that_pypi_lacks(
    setup_venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, nvidia: bool, build: str
) -> None:
    """The commands that it would run here; the engine of a test's own machine is not there in the new environment.

    On Windows with an NVIDIA driver that is the build with CUDA; without one the locked wheel is taken."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(setup_venv, "has_nvidia", lambda: nvidia)
    monkeypatch.setattr(setup_venv, "run", lambda *command: ran.append(command) is None)
    monkeypatch.setattr(sys, "argv", ["setup_venv.py", str(tmp_path)])
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    setup_venv.main()
    hashed = [command[-1] for command in ran if "--require-hashes" in command]
    assert all("--no-deps" in command for command in ran)
    length = 1 + len(setup_venv.INSTALL)
    others = [command[length:] for command in ran if "--require-hashes" not in command]
    own = [(f"torch==2.13.0+{build}",)] if build else []
    assert others == [*own, ("--no-build-isolation", "-e", str(ROOT))]
    names = set(re.findall(r"^([a-z0-9-]+)==", "".join(Path(file).read_text("utf-8") for file in hashed), re.M))
    assert {"numpy", "pytest", "hatchling", "pycosat"} <= names
    assert ("torch" in names, "triton" in names) == (not own, not own)
    assert ("bitsandbytes" in names) == (system == "Linux")


def test_the_cpu_build_that_setup_venv_takes_is_the_release_that_is_locked(
    lock: ModuleType, setup_venv: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one that was tried: it is named once, in lock.py."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup_venv, "run", lambda *command: ran.append(command) is None)
    setup_venv.install_torch("python", setup_venv.CPU_INDEX)
    assert [command[-1] for command in ran] == [f"{lock.TRIED}+cpu"]
    assert f"\n{lock.TRIED} " in lock.LOCK.read_text("utf-8")


def test_pytorchs_own_indexes_are_those_of_the_install_command_and_have_the_cuda_that_is_locked(
    setup_venv: ModuleType,
) -> None:
    assert (setup_venv.CPU_INDEX, setup_venv.CUDA_INDEX) == (packages.CPU_INDEX, packages.CUDA_INDEX)
    locked = next(name for name in setup_venv.locked() if name.startswith("cuda-toolkit==")).partition("==")[2]
    assert packages.CUDA_INDEX.endswith("/cu" + "".join(locked.split(".")[:2]))


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_a_python_that_has_no_wheels_is_refused_with_the_command_that_names_another(
    setup_venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys, "argv", ["setup_venv.py", str(tmp_path / "new")])
    with pytest.raises(SystemExit, match=r"Python 3\.11 to 3\.14 is needed(.|\n)*make run PYTHON=python3\.14"):
        setup_venv.main()
    assert not (tmp_path / "new").exists()


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
