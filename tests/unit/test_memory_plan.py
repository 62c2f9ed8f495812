"""The memory plan of today beside the peaks that were measured; nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.memory_plan import replanned

MEASURED = Path(__file__).parents[2] / "docs" / "benchmarks" / "memory.jsonl"


def test_every_measured_peak_is_planned_within_a_fifth(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in MEASURED.read_text("utf-8").splitlines()]
    assert len({row["shape"] for row in rows}) >= 4
    planned = [replanned(row, tmp_path) for row in rows]
    assert [row for row in planned if not 0.8 <= row["plan/peak"] <= 1.2] == []
