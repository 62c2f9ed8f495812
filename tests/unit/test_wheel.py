"""The wheel of this checkout: built offline, whole, and enough without the checkout."""

from __future__ import annotations

import configparser
import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ALONE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from {module} import {function}
try:
    sys.exit({function}())
finally:
    print(*{{m.__file__ for n, m in sys.modules.items() if n.startswith("sapo_") and m.__file__}}, sep="\\n")
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: packaging/setup_venv.py brings it")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_has_every_file_of_the_packages_its_licence_and_nothing_else(unpacked: Path) -> None:
    info = f"sapo_desktop-{PROJECT['project']['version']}.dist-info"
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    wanted = {
        path.relative_to(package.parent).as_posix()
        for package in ROOT.glob("*/sapo_*")
        if package.name != "sapo_lab"  # for those who have a clone
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert found == wanted | about


def test_the_entry_point_runs_from_the_unpacked_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    """Beside it is only what other packages bring: no module of the app comes from this checkout."""
    points = configparser.ConfigParser()
    points.read(next(unpacked.glob("*.dist-info/entry_points.txt")), "utf-8")
    module, function = points["console_scripts"]["sapo-desktop"].split(":")
    code = ALONE.format(module=module, function=function)
    for arguments, said in (["--version"], PROJECT["project"]["version"]), (["tasks"], "knights_knaves"):
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, str(unpacked), *arguments],
            env=os.environ | {"SAPO_HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert said in done.stdout
        files = [line for line in done.stdout.splitlines() if line.endswith(".py") and "sapo_" in line]
        assert len(files) > 3
        assert [file for file in files if not file.startswith(str(unpacked))] == []
