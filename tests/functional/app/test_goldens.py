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
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_actions import ScriptedModels, ScriptedTasks, SettingsOfNowhere, findings
from tests.support.scripted_feed import SILO, SWARM, app_over
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.models.screen import ModelsScreen
from sapo_desktop.dashboard.screens.rollouts.screen import RolloutsScreen
from sapo_desktop.dashboard.screens.settings.screen import SettingsScreen
from sapo_desktop.paths import Home

GOLDENS = Path(__file__).parents[2] / "goldens"
SIZES = ((40, 10), (80, 24), (120, 36), (200, 60))
RENEW = os.environ.get("SAPO_RENEW_GOLDENS") == "1"
PICTURES = os.environ.get("SAPO_PICTURES", "")


@dataclass(frozen=True)
class Scene:
    """name: of the golden. keys: to get there. back: to leave it again."""

    name: str
    keys: tuple[str, ...]
    back: tuple[str, ...] = ()


SCENES: dict[str, tuple[Scene, ...]] = {
    "swarm": (
        Scene("1-swarm", ("1",)),
        Scene("2-swarm", ("2",)),
        Scene("2-trail", ("2", "w"), ("escape",)),
        Scene("2-join", ("2", "j"), ("escape",)),
        Scene("3-rollouts", ("3",)),
        Scene("3-search", ("3", "slash", "5", "3"), ("escape",)),
        Scene("3-diff", ("3", "w", "w", "x"), ("escape", "escape")),
        Scene("3-export", ("3", "e"), ("escape",)),
        Scene("4-models", ("4",)),
        Scene("4-model", ("4", "enter"), ("escape",)),
        Scene("5-log", ("5",)),
        Scene("help", ("1", "question_mark"), ("escape",)),
        Scene("quit", ("q",), ("escape",)),
        Scene("snooze", ("z",), ("escape",)),
        Scene("doctor", ("d",), ("escape",)),
        Scene("settings", ("f2",)),
        Scene("setting", ("enter",), ("escape", "escape")),
        Scene("wizard", ("m",), ("escape",)),
        Scene("palette", ("ctrl+p",), ("escape",)),
    ),
    "silo": (Scene("1-silo", ("1",)), Scene("1-expanded", ("e",), ("e", "e", "e")), Scene("2-silo", ("2",))),
    "first run": (Scene("first-run", ()),),
    "ascii": (Scene("1-ascii", ("1",)), Scene("3-ascii", ("3",))),
}


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


def application(kind: str) -> SapoDashboard:
    events = SILO if kind in ("silo", "first run") else SWARM
    options: dict[str, Any] = {"glyphs": "ascii" if kind == "ascii" else "unicode"}
    if kind == "swarm":
        options |= {
            "model_actions": ScriptedModels(SILO),
            "settings_actions": SettingsOfNowhere(Home.find()),
            "task_actions": ScriptedTasks(),
            "examine": findings,
        }
        from sapo_desktop.services.swarms.actions import HomeActions

        options["swarm_actions"] = HomeActions(Home.find())
    return app_over(events, first_run=kind == "first run", **options)


async def shown(pilot: Pilot[object]) -> list[str]:
    """The lines of the screen once nothing on it changes any more."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    before: list[str] = []
    for _ in range(200):
        app.redraw()
        if isinstance(app.screen, FirstRunScreen):  # whether the focus had scrolled it by now is chance
            app.screen.query_one(".welcome").scroll_home(animate=False)
        await pilot.pause()
        lines = ["".join(s.text for s in strip).rstrip() for strip in app.screen._compositor.render_strips()]
        if lines == before and _read(app):
            return lines
        before = lines
    raise AssertionError("The screen does not come to rest:\n" + "\n".join(before))


def _read(app: SapoDashboard) -> bool:
    """What is read in the background is in."""
    screen = app.screen
    if isinstance(screen, RolloutsScreen):
        return screen.current and 0 < screen.newest.of == screen.newest.indexed
    if isinstance(screen, ModelsScreen):
        return bool(screen.shelf.models)
    return bool(screen.rows) if isinstance(screen, SettingsScreen) else True


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
    async with app.run_test(size=SIZES[-1]) as pilot:
        for scene in SCENES[kind]:
            for key in scene.keys:
                await pilot.press(key)
                await shown(pilot)
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


def test_no_golden_is_left_of_a_screen_that_is_gone() -> None:
    names = {scene.name for scenes in SCENES.values() for scene in scenes}
    assert {path.stem for path in GOLDENS.glob("*.txt")} == names
