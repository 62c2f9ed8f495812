"""What was asked of the rounds of prove_card.py, beside what they measured."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

READ_PERCENT = 50
"""Of the memory's rate that decoding at width 8 should reach."""
PLAN, PLANNED = (0.85, 1.15), ("135M", "L")
"""Planned memory should be so many times the peak, as it is on processors; of the shapes that are not mostly the program."""


def goals(outputs: Iterable[str]) -> list[str]:
    """A table in Markdown, of what the steps printed; nothing where no round came to its end."""
    rows = [row for found in map(_figures, outputs) if found for row in _rows(found)]
    return ["", "| goal | asked | measured | met |", "|---|---|---|---|", *rows] if rows else []


def _figures(output: str) -> dict[str, Any]:
    """What a round printed as JSON; nothing of another step, or where it did not get so far."""
    with contextlib.suppress(ValueError):
        found = json.loads(output.strip().rpartition("\n")[2])
        return found if isinstance(found, dict) and "plan_gb" in found else {}
    return {}


def _rows(found: dict[str, Any]) -> Iterator[str]:
    name, share, peak = (
        f"{found['shape']}, {found['groups']} x 8",
        found["generate_percent_of_read"],
        found["peak_gb"]["ours"],
    )
    if found["groups"] == 1:
        met = "yes" if share >= READ_PERCENT else "no"
        yield f"| {name}: decoding, share of the memory's rate | {READ_PERCENT} % at least | {share} % | {met} |"
    if found["shape"] in PLANNED and peak:
        ratio, (least, most) = found["plan_gb"] / peak, PLAN
        met = "yes" if least <= ratio <= most else "no"
        yield f"| {name}: planned memory / peak | {least} to {most} | {ratio:.2f} | {met} |"
