"""Linux' trees of a laptop as folders, which tests change as its sensors would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux' trees")


def write(folder: Path, **files: str) -> None:
    """Files of a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def power(root: Path, plugged: bool, charge: int) -> None:
    supplies = root / "sys" / "class" / "power_supply"
    status = "Charging" if plugged else "Discharging"
    write(supplies / "BAT0", type="Battery", status=status, capacity=str(charge))
    write(supplies / "AC", type="Mains", online=str(int(plugged)))


def laptop(root: Path, celsius: float = 50.0, charge: int = 80) -> None:
    """Under root: sys, plugged in."""
    power(root, plugged=True, charge=charge)
    chip = root / "sys" / "class" / "hwmon" / "hwmon3"
    write(chip, name="coretemp", temp1_input=str(round(celsius * 1000)))
