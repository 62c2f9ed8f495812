"""What a task of the catalogue accepts beside its true answer, as it was measured over 25 questions of each.

The list is printed by `tests/benchmarks/near_misses.py`, and `tests/unit/swarm/test_near_misses.py` holds it to the code.
"""

from __future__ import annotations

import json
from importlib import resources

from sapo_swarm.tasks.catalogue import LIBRARY_PRESET, SOFT


def every() -> dict[str, dict[str, int]]:
    """Task/preset -> what was done to the true answer -> percent of such texts that have full marks."""
    text = resources.files("sapo_assets").joinpath("accepted.json").read_text("utf-8")
    found: dict[str, dict[str, int]] = json.loads(text)
    return found


def sentences(task: str, preset: str) -> list[str]:
    """Which rule judges, and what it accepts."""
    rule = f"{task} ({preset}): {_rule(task, preset)}"
    kinds = every()[f"{task}/{preset}"]
    if not kinds:
        return [rule, "Accepted beside the true answer: none of the changes that were tried."]
    shown = "; ".join(kind if percent == 100 else f"{kind} ({percent} %)" for kind, percent in kinds.items())
    return [rule, f"Accepted beside the true answer, of changes to it that were tried: {shown}."]


def _rule(task: str, preset: str) -> str:
    if task not in SOFT:
        return "judged by one rule in every preset."
    if preset == LIBRARY_PRESET:
        return "judged by reasoning_gym's own rule, which accepts more than right answers."
    return "judged exactly; --preset library shows what reasoning_gym's own rule accepts."
