"""What holds for every test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sapo_desktop.paths import Home

# A test must not fail because the machine was busy, and CI must not fail by chance: there every run draws the same.
CI = os.environ.get("CI") == "true"
settings.register_profile(
    "sapo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=CI,
    database=None,
)
settings.load_profile("sapo")

# What the dashboard draws depends on the terminal and the language; the tests' own are the same everywhere.
os.environ["TERM"] = "xterm-256color"
os.environ["LANG"] = os.environ["LC_ALL"] = "C.UTF-8"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A prepared home of the test's own, where this process looks for one."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    return found


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """A model whose layers decay has them taken for 0 in its thread, which hypothesis refuses to work with."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
