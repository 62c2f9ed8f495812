"""Habits that no linter holds: short files, few entries on a level, and no dead code that nobody reviewed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sapo_backends.errors import size_text
from sapo_swarm.node.storage.files import free_bytes

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("app", "swarm", "backends", "assets/sapo_assets", "tests", "packaging")
LIMIT = 300
LONGER: dict[str, int] = {}
"""Longer files, and how long they may be. A file that became short leaves the list; a new one needs a reason."""
ENTRIES = 14
"""Modules and packages on one level of the product, at most. About a dozen is wanted."""


def sources() -> dict[str, int]:
    """Every Python file of the floors with its number of lines."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }


def test_files_are_short_but_for_a_listed_few() -> None:
    found = sources()
    assert {path: lines for path, lines in found.items() if lines > LONGER.get(path, LIMIT)} == {}
    assert {path for path in LONGER if found.get(path, 0) <= LIMIT} == set(), "these may leave the list"


def test_a_level_of_the_product_has_few_entries() -> None:
    folders = {path.parent for floor in FLOORS[:3] for path in (ROOT / floor).rglob("*.py")}
    entries = {
        folder.relative_to(ROOT).as_posix(): sum(
            entry.name[0] not in "_." and (entry.is_dir() or entry.suffix == ".py") for entry in folder.iterdir()
        )
        for folder in folders
    }
    assert {folder: count for folder, count in entries.items() if count > ENTRIES} == {}


def test_sizes_are_written_by_one_function_in_powers_of_ten() -> None:
    """A model was 1,260 MB, 1,202 MiB, 1.17 GiB and 1.3 GB by place. Rates and the data cap, which is in MB, are no sizes."""
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
    assert found == ["sparse_log.py"]
