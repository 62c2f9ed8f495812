"""The lab: experiments with many nodes in one process, and the reports on them. A package of this repository, not of the wheel.

`python -m sapo_lab list` shows the experiments; docs/lab/README.md says what was found.
"""

from __future__ import annotations

from pathlib import Path

TASKS = Path(__file__).parent / "experiments" / "tasks"
"""Own tasks that experiments name, as `sapo-desktop tasks new` wrote them."""


def list_experiments() -> dict[str, Path]:
    """Name -> TOML file of every experiment that is registered here."""
    folder = Path(__file__).parent / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
