"""Every screen and dialog at four sizes, as text, compared with tests/goldens. What changed on purpose is written anew by

    SAPO_RENEW_GOLDENS=1 python -m pytest tests/functional/app/test_goldens.py

and read in the diff before it is committed. SAPO_PICTURES=FOLDER writes each as SVG, too, to be looked at.
"""

from __future__ import annotations

import os
import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from tests.support.scenes import SCENES, application, screen_classes, shown

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.paths import Home

GOLDENS = Path(__file__).parents[2] / "goldens"
SIZES = ((40, 10), (80, 24), (120, 36), (200, 60))
RENEW = os.environ.get("SAPO_RENEW_GOLDENS") == "1"
PICTURES = os.environ.get("SAPO_PICTURES", "")


@pytest.fixture(autouse=True)
def _same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder, clock or zone of this machine is on a screen."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir("/")
    if hasattr(time, "tzset"):
        time.tzset()
    Home.find().prepare()
    yield
    monkeypatch.undo()
    if hasattr(time, "tzset"):
        time.tzset()


def compact(lines: list[str]) -> str:
    """Long runs of one sign, and equal lines after each other, as one with their number."""
    short = [re.sub(r"(.)\1{11,}", lambda m: f"{m[1]}⟨{len(m[0])}⟩", line) for line in lines]
    told = ((line, len(list(same))) for line, same in groupby(short))
    return "\n".join(line if count == 1 else f"{line}   (x{count})" for line, count in told)


def test_a_golden_tells_every_line() -> None:
    assert compact(["a" * 12 + "b", "", "", "c"]) == "a⟨12⟩b\n   (x2)\nc"


@pytest.mark.parametrize("kind", SCENES)
async def test_every_screen_and_dialog_looks_as_it_did(kind: str) -> None:
    app, wrong = application(kind), []
    async with app.run_test(size=SIZES[1]) as pilot:
        for scene in SCENES[kind]:
            await pilot.resize_terminal(*SIZES[1])
            for key in scene.keys:
                await pilot.press(key)
                await shown(pilot)
            if not scene.keys:
                await shown(pilot)
            assert type(app.screen) is scene.screen, scene.name
            parts = []
            for width, height in SIZES:
                await pilot.resize_terminal(width, height)
                parts.append(f"== {width}x{height}\n{compact(await shown(pilot))}")
                _picture(app, f"{scene.name}-{width}x{height}", (width, height) == SIZES[2])
            await pilot.press(*scene.back)
            path, text = GOLDENS / f"{scene.name}.txt", "\n".join(parts) + "\n"
            if RENEW:
                GOLDENS.mkdir(exist_ok=True)
                path.write_text(text, "utf-8")
            elif not path.exists() or path.read_text("utf-8") != text:
                wrong.append(f"{scene.name}:\n{text}")
    assert not wrong, "\n".join(wrong)


def _picture(app: SapoDashboard, name: str, always: bool) -> None:
    """Each is a picture that can be read; written where somebody asked for them."""
    if not (always or PICTURES):
        return
    svg = app.export_screenshot(title=name)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        Path(PICTURES, f"{name}.svg").write_text(svg, "utf-8")


def test_every_screen_and_dialog_of_the_code_has_a_golden() -> None:
    shown_here = {scene.screen for scenes in SCENES.values() for scene in scenes}
    assert screen_classes() - shown_here == set()


def test_no_golden_is_left_of_a_screen_that_is_gone() -> None:
    names = {scene.name for scenes in SCENES.values() for scene in scenes}
    assert {path.stem for path in GOLDENS.glob("*.txt")} == names
