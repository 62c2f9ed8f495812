"""What stores and package managers read: each file parsed, each equal to pyproject.toml and to the built files' digests."""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

import sapo_desktop

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BASE = "https://example.org/releases/1"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_files", ROOT / "packaging" / "release_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("release")
    sdist, windows = folder / "sapo_desktop-1.tar.gz", folder / "sapo-desktop-windows.zip"
    sdist.write_bytes(b"source")
    windows.write_bytes(b"program")
    command = [sys.executable, str(ROOT / "packaging" / "release_files.py"), str(folder / "out"), "--base", BASE + "/"]
    done = subprocess.run(
        [*command, "--sdist", str(sdist), "--windows", str(windows), "--date", "2026-11-23"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(path).name: Path(path).read_text("utf-8") for path in done.stdout.splitlines()}


def test_the_desktop_entry_starts_the_entry_point_in_a_terminal(made: dict[str, str]) -> None:
    entry = configparser.ConfigParser(interpolation=None)
    entry.read_string(made["io.github.sapo_desktop.desktop"])
    desktop = entry["Desktop Entry"]
    assert [desktop["Exec"]] == list(PROJECT["scripts"])
    assert (desktop["Type"], desktop["Terminal"]) == ("Application", "true")
    assert all(desktop[key].endswith(";") for key in ("Categories", "Keywords"))


def test_the_metainfo_names_the_version_the_licence_and_the_desktop_entry(made: dict[str, str]) -> None:
    root = ElementTree.fromstring(made["io.github.sapo_desktop.metainfo.xml"])
    release = root.find("releases/release")
    assert release is not None
    assert (release.get("version"), release.get("date")) == (PROJECT["version"], "2026-11-23")
    assert root.findtext("project_license") == PROJECT["license"]
    assert f"{root.findtext('launchable')}" in made
    assert [root.findtext("provides/binary")] == list(PROJECT["scripts"])


def test_the_formula_has_the_digest_of_the_archive_and_installs_completions(made: dict[str, str]) -> None:
    text = made["sapo-desktop.rb"]
    assert f'sha256 "{hashlib.sha256(b"source").hexdigest()}"' in text
    assert f'url "{BASE}/sapo_desktop-1.tar.gz"' in text
    assert len(re.findall(r"^\s*(?:class|def|test do)\b", text, re.M)) == len(re.findall(r"^\s*end$", text, re.M))
    if ruby := shutil.which("ruby"):
        subprocess.run([ruby, "-c"], input=text, text=True, check=True, capture_output=True)
    assert (ROOT / "packaging" / "requirements.lock").exists()


def test_scoop_and_winget_agree_on_version_address_and_digest(made: dict[str, str]) -> None:
    digest = hashlib.sha256(b"program").hexdigest()
    scoop = json.loads(made["sapo-desktop.json"])
    assert (scoop["version"], scoop["architecture"]["64bit"]["hash"]) == (PROJECT["version"], digest)
    manifests = {
        name: {key: json.loads(value) for key, value in (line.split(": ", 1) for line in text.splitlines())}
        for name, text in made.items()
        if name.endswith(".yaml")
    }
    assert {m["ManifestType"] for m in manifests.values()} == {"version", "installer", "defaultLocale"}
    assert {m["PackageVersion"] for m in manifests.values()} == {PROJECT["version"]}
    (installer,) = next(m["Installers"] for m in manifests.values() if "Installers" in m)
    assert installer["InstallerSha256"].lower() == digest
    assert installer["InstallerUrl"] == scoop["architecture"]["64bit"]["url"] == f"{BASE}/sapo-desktop-windows.zip"


def test_the_program_the_project_and_the_newest_changes_have_one_version() -> None:
    assert sapo_desktop.__version__ == load().version() == PROJECT["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest is not None
    assert newest[1] == PROJECT["version"]
