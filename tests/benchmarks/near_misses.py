"""What each allowed task accepts beside its truth: prints `assets/sapo_assets/accepted.json`, which `tasks NAME` shows.

PYTHONHASHSEED=0 python tests/benchmarks/near_misses.py > assets/sapo_assets/accepted.json
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.near_misses import shares

from sapo_swarm.tasks.catalogue import CATALOGUE

SEEDS = 25


def main() -> None:
    """Task/preset -> kind -> percent of such texts with full marks."""
    found: dict[str, dict[str, int]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for task, presets in sorted(CATALOGUE.items()):
            for preset in presets:
                shown = shares(task, preset, SEEDS)
                found[f"{task}/{preset}"] = {kind: max(1, round(100 * share)) for kind, share in shown.items()}
    lines = (f"  {json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in found.items())
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
