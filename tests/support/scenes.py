"""Every screen and dialog of the dashboard and the keys that lead there: for the goldens, and for the table of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from tests.support.scripted_actions import ScriptedModels, ScriptedSwarms, ScriptedTasks, SettingsOfNowhere, findings
from tests.support.scripted_feed import SILO, SWARM, app_over
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import OptionList

from sapo_desktop.dashboard import screens
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.palette import ActionPalette
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog, QuitDialog, SnoozeDialog
from sapo_desktop.dashboard.screens.first_run import BasesDialog, FirstRunScreen
from sapo_desktop.dashboard.screens.help import DoctorScreen, HelpScreen
from sapo_desktop.dashboard.screens.log import LogScreen
from sapo_desktop.dashboard.screens.models.chat import ChatScreen
from sapo_desktop.dashboard.screens.models.compare import CompareScreen
from sapo_desktop.dashboard.screens.models.dialogs import ExportScreen, KeptStatesDialog, NameDialog, NewModelDialog
from sapo_desktop.dashboard.screens.models.screen import ModelScreen, ModelsScreen
from sapo_desktop.dashboard.screens.rollouts.detail import DiffScreen
from sapo_desktop.dashboard.screens.rollouts.keys import ExportDialog
from sapo_desktop.dashboard.screens.rollouts.screen import RolloutsScreen
from sapo_desktop.dashboard.screens.settings import SettingEditor, SettingsScreen
from sapo_desktop.dashboard.screens.swarm.dialogs import HostedDialog, JoinDialog, TaskDialog
from sapo_desktop.dashboard.screens.swarm.find import FindDialog
from sapo_desktop.dashboard.screens.swarm.screen import SwarmScreen
from sapo_desktop.dashboard.screens.swarm.trail import TrailDialog
from sapo_desktop.dashboard.screens.task_wizard import DraftScreen, MeasuringScreen, PlacesScreen
from sapo_desktop.dashboard.state import NodeLink, ReplayCaption
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import LIST, BaseGroup, BaseOffer, FirstRunInfo
from sapo_swarm.events import StateChanged


@dataclass(frozen=True)
class Scene:
    """name: of the golden. screen: what is on top then. keys: to get there. back: to leave it again."""

    name: str
    screen: type[Screen[Any]]
    keys: tuple[str, ...]
    back: tuple[str, ...] = ("escape",)


SCENES: dict[str, tuple[Scene, ...]] = {
    "swarm": (
        Scene("1-swarm", DashboardScreen, ("1",), ()),
        Scene("2-swarm", SwarmScreen, ("2",), ()),
        Scene("2-trail", TrailDialog, ("2", "w")),
        Scene("2-join", JoinDialog, ("2", "j")),
        Scene("2-find", FindDialog, ("2", "f")),
        Scene("2-host", ChoiceDialog, ("2", "h")),
        Scene("2-hosted", HostedDialog, ("2", "h", "enter")),
        Scene("2-leave", ChoiceDialog, ("2", "l")),
        Scene("2-task", TaskDialog, ("2", "t")),
    ),
    "rollouts": (
        Scene("3-rollouts", RolloutsScreen, ("3",), ()),
        Scene("3-search", RolloutsScreen, ("3", "slash", "5", "3")),
        Scene("3-diff", DiffScreen, ("3", "w", "w", "x"), ("escape", "escape")),
        Scene("3-export", ExportDialog, ("3", "e")),
    ),
    "models": (
        Scene("4-models", ModelsScreen, ("4",), ()),
        Scene("4-model", ModelScreen, ("4", "enter")),
        Scene("4-new", NewModelDialog, ("4", "n")),
        Scene("4-rename", NameDialog, ("4", "r")),
        Scene("4-delete", ChoiceDialog, ("4", "x")),
        Scene("4-kept", KeptStatesDialog, ("4", "k")),
        Scene("4-compare-with", ChoiceDialog, ("4", "v")),
        Scene("4-compare", CompareScreen, ("4", "v", "enter")),
        Scene("4-chat", ChatScreen, ("4", "t", "y", "enter")),
        Scene("4-export", ExportScreen, ("4", "e", "enter")),
    ),
    "everywhere": (
        Scene("5-log", LogScreen, ("5",), ()),
        Scene("help", HelpScreen, ("1", "question_mark")),
        Scene("quit", QuitDialog, ("q",)),
        Scene("snooze", SnoozeDialog, ("z",)),
        Scene("doctor", DoctorScreen, ("d",)),
        Scene("settings", SettingsScreen, ("f2",)),
        Scene("setting", SettingEditor, ("f2", "enter"), ("escape", "escape")),
        Scene("wizard", PlacesScreen, ("m",)),
        Scene("wizard-draft", DraftScreen, ("m", "enter"), ("escape", "escape")),
        Scene("wizard-measured", MeasuringScreen, ("m", "enter", "enter"), ("escape",) * 3),
        Scene("palette", ActionPalette, ("ctrl+p",)),
    ),
    "silo": (
        Scene("1-silo", DashboardScreen, ("1",), ()),
        Scene("1-expanded", DashboardScreen, ("e",), ("e", "e", "e")),
        Scene("2-silo", SwarmScreen, ("2",), ()),
    ),
    "first run": (Scene("first-run", FirstRunScreen, (), ()),),
    "first run, models": (Scene("first-run-models", BasesDialog, ("enter",), ("escape",)),),
    "ascii": (Scene("1-ascii", DashboardScreen, ("1",), ()), Scene("3-ascii", RolloutsScreen, ("3",), ())),
    "waiting": tuple(
        Scene(f"{key}-waiting", screen, (key,), ())
        for key, screen in zip("1235", (DashboardScreen, SwarmScreen, RolloutsScreen, LogScreen), strict=True)
    ),
    "paused": (Scene("1-paused", DashboardScreen, ("1",), ()),),
    "gone": (Scene("1-gone", DashboardScreen, ("1",), ()),),
    "replay": (Scene("1-replay", DashboardScreen, ("1",), ()),),
}


EVERYTHING = ("swarm", "rollouts", "models", "everywhere")
"""Kinds of scenes in a dashboard in which everything can be had done."""


MODELS_HERE = (
    BaseGroup(
        "On this computer",
        (
            BaseOffer("ollama:qwen2.5-coder:0.5b", "fits, 491 MB, Q4_K_M, Ollama", "494M parameters, qwen2"),
            BaseOffer("lmstudio:new", "cannot be trained: the architecture new is not supported", "", "not supported"),
        ),
        ("2 more are not listed: made for pictures, vectors or a cloud.",),
    ),
    BaseGroup("Bundled", (BaseOffer("starter", "a toy, bundled: to see how it works"),)),
)


async def models_here(_again: bool) -> tuple[BaseGroup, ...]:
    return MODELS_HERE


def application(kind: str) -> SapoDashboard:
    """The dashboard that a kind of scenes is played in."""
    newest = max(event.time for event in SILO)
    if kind in EVERYTHING:
        return everything()
    if kind == "replay":
        told = ReplayCaption(
            SILO[0].time, "The model answers questions, and is rewarded for what a verifier finds right."
        )
        return SapoDashboard(ReplayFeed(list(SILO), 1.0, newest - 1, [told], clock=lambda: 0.0))
    after: dict[str, list[Any]] = {
        "paused": [StateChanged(time=newest, state="paused", sentence="Paused: on battery power", reason="battery")],
        "gone": [NodeLink(False, "The node is gone", newest, ended=True)],
    }
    if kind == "first run, models":
        info = FirstRunInfo(models=((LIST, "Enter lists them"), ("starter", "a toy")), offers=models_here)
        return app_over(list(SILO), first_run=True, start=lambda _: None, info=lambda: info)
    events = [] if kind == "waiting" else SWARM if kind == "ascii" else [*SILO, *after.get(kind, [])]
    swarms = ScriptedSwarms() if kind == "silo" else None
    glyphs = "ascii" if kind == "ascii" else "unicode"
    return app_over(events, first_run=kind == "first run", glyphs=glyphs, swarm_actions=swarms)


def everything(**more: Any) -> SapoDashboard:
    """A dashboard over a node in a swarm in which everything can be had done."""
    home = Home.find()
    options: dict[str, Any] = {
        "model_actions": ScriptedModels(SILO),
        "swarm_actions": ScriptedSwarms(),
        "settings_actions": SettingsOfNowhere(home),
        "task_actions": ScriptedTasks(),
        "examine": findings,
    }
    return app_over(SWARM, **options, **more)


def scene_of(screen: type) -> Scene:
    """The plainest scene of the dashboard with everything that shows this screen."""
    return next(scene for kind in EVERYTHING for scene in SCENES[kind] if scene.screen is screen)


def screen_classes() -> set[type]:
    """Every screen and dialog that the code has: those of its classes that nothing else is made from."""
    for module in walk_packages(screens.__path__, screens.__name__ + "."):
        import_module(module.name)
    return {one for one in _below(Screen) if one.__module__.startswith("sapo_desktop.") and not one.__subclasses__()}


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


async def shown(pilot: Pilot[object]) -> list[str]:
    """The lines of the screen once nothing on it changes any more."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    before: list[str] = []
    for _ in range(200):
        app.redraw()
        for below in app.screen_stack:
            if (
                isinstance(below, ModelsScreen) and below.shelf.models
            ):  # whether its list had the new width by now is chance
                below.fill()
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
    if app.first_run and not app.begun:
        listed = isinstance(screen, BasesDialog) and screen.query_one(OptionList).option_count > 0
        return isinstance(screen, FirstRunScreen) or listed
    if isinstance(screen, RolloutsScreen):
        known = screen.newest
        return screen.current and known.of == known.indexed and (known.of > 0 or app.state.run is None)
    if isinstance(screen, ModelsScreen):
        return bool(screen.shelf.models)
    if isinstance(screen, DraftScreen):
        return screen._seen is not None
    if isinstance(screen, MeasuringScreen):
        return screen._work is None
    return bool(screen.rows) if isinstance(screen, SettingsScreen | FindDialog) else True
