"""Habits that no linter holds: a file is one idea, sizes are written in one way, every server runs on one runner."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sapo_backends.errors import size_text
from sapo_swarm.node.checkpoints import free_bytes

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("app", "swarm", "backends", "assets/sapo_assets", "tests", "packaging")
LIMIT = 800
"""Lines of a file at most. The unit is the idea: 200 to 500 lines are usual."""


def sources() -> dict[str, int]:
    """Every Python file of the floors with its number of lines."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }


def test_no_file_is_longer_than_one_idea() -> None:
    assert {path: lines for path, lines in sources().items() if lines > LIMIT} == {}


def test_sizes_are_written_by_one_function_in_powers_of_ten() -> None:
    """A model was 1,260 MB, 1,202 MiB, 1.17 GiB and 1.3 GB by place. Rates are no sizes."""
    assert [
        size_text(s) for s in (0, 2_600, 999_499, 999_500, 9_940_000, 9_960_000, 999_499_999, 999_500_000, 1.26e12)
    ] == (["0 kB", "3 kB", "999 kB", "1.0 MB", "9.9 MB", "10 MB", "999 MB", "1.00 GB", "1,260.00 GB"])
    found = {
        path.relative_to(ROOT).as_posix()
        for floor in FLOORS[:3]
        for path in (ROOT / floor).rglob("*.py")
        if re.search(r"\} [GM]iB|/ (1e6|1e9|2\*\*[23]0)[^}]*\} [kMG]B\b(?!/s)", path.read_text("utf-8"))
    }
    assert found == {"backends/sapo_backends/errors.py"}


def test_the_app_asks_for_free_disk_in_one_way() -> None:
    """Six places did, each in a way of its own."""
    assert [path.name for path in (ROOT / "app").rglob("*.py") if "disk_usage" in path.read_text("utf-8")] == []
    missing = ROOT / "no" / "such" / "folder"
    assert free_bytes(missing) == pytest.approx(shutil.disk_usage(ROOT).free, rel=0.5)


def test_bytes_that_do_not_read_are_caught_in_one_way() -> None:
    """msgspec raises three kinds of errors on damaged bytes; catching one of them was a traceback in six places."""
    for floor in ("app", "swarm"):
        for path in (ROOT / floor).rglob("*.py"):
            assert not re.search(r"except [^:]*msgspec\.MsgspecError", path.read_text("utf-8")), f"{path}: UNREADABLE"


def test_every_server_runs_on_the_runner_whose_log_strangers_cannot_fill() -> None:
    found = [
        p.name for floor in FLOORS[:2] for p in (ROOT / floor).rglob("*.py") if "web.AppRunner(" in p.read_text("utf-8")
    ]
    assert found == ["servers.py"]
