"""What holds for every test."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sapo_desktop.paths import Home

PACKAGING = Path(__file__).resolve().parents[1] / "packaging"

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

# A shell's background job and its children ignore an interrupt: half a minute was spent waiting for what one should end.
with contextlib.suppress(ValueError):  # not the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A prepared home of the test's own, where this process looks for one."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    return found


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors, up to four: half of the time a test waits for a screen to rest or for a process."""
    return min((os.cpu_count() or 1) + 1, 4)


gc.disable()  # while thousands of tests are imported


def pytest_runtestloop() -> None:
    """What was imported is not searched for garbage again and again."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on the larger published models take minutes and half a gigabyte: they run only when asked for by their mark."""
    if "real_large" in config.option.markexpr:
        return
    large = [item for item in items if item.get_closest_marker("real_large")]
    config.hook.pytest_deselected(items=large)
    items[:] = [item for item in items if item not in large]


def fetched_model(name: str) -> Path:
    """The file of a published model. One that was not fetched is a failure under CI, else a skip with a sentence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PACKAGING))
        from real_models import path_of
    path: Path = path_of(name)
    if not path.is_file():
        missing = f"{path} is not there. Fix: python packaging/real_models.py {name}"
        pytest.fail(missing) if CI else pytest.skip(missing)
    return path


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct as a person has it, a GGUF file in Q4_1. Read only."""
    return fetched_model("smollm2")


@pytest.fixture(scope="session", params=["qwen-coder", "gemma-270m"])
def real_large_model(request: pytest.FixtureRequest) -> Path:
    """Each of the two larger published models, for tests with the mark real_large. Read only."""
    return fetched_model(request.param)


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """A model whose layers decay has them taken for 0 in its thread, which hypothesis refuses to work with."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
