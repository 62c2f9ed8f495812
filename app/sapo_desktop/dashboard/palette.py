"""Every action by name, for the command palette (ctrl+p)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from textual.app import SystemCommand
from textual.binding import Binding
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import OptionList
from textual.worker import Worker

from sapo_desktop.dashboard.host import DashboardHost
from sapo_desktop.dashboard.look import describe_binding, key_label, own_bindings
from sapo_desktop.dashboard.screens.base import DismissOnceScreen

_SCREENS = (
    ("dashboard", "Dashboard", "Charts, held-out results, what it does now (1)"),
    ("swarm", "Swarm", "Peers, shares, what was rejected and why (2)"),
    ("rollouts", "Rollouts", "Questions, attempts and rewards (3)"),
    ("models", "My models", "What they gained; train, compare, chat, export, delete (4)"),
    ("log", "Log", "Dated lines, searchable (5)"),
)
OWNERS = {
    "dashboard": "dashboard:DashboardScreen",
    "swarm": "swarm.screen:SwarmScreen",
    "rollouts": "rollouts.screen:RolloutsScreen",
    "models": "models.screen:ModelsScreen",
    "log": "log:LogScreen",
}
_LEAVING = "escape"
"""The key that only closes; it closes the palette as well."""


class ActionPalette(CommandPalette, DismissOnceScreen[None]):
    """Every action by name."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the list before its first layout."""
        lists = self.query(OptionList)
        if action == "command_list" and not (lists and lists.first().scrollable_content_region):
            return False
        return super().check_action(action, parameters)

    def run_worker(self, *work: Any, **options: Any) -> Worker[Any]:
        """Run the search so that an error (the palette is already closed) ends only the search."""
        return super().run_worker(*work, **(options | {"exit_on_error": False}))


def palette_commands(app: DashboardHost) -> Iterator[SystemCommand]:
    """Every action in the palette, with its description."""
    for mode, title, text in _SCREENS:
        if mode in app.modes:
            yield SystemCommand(title, text, partial(app.switch_mode, mode))
    if app.feed.controls:
        yield from _control(app)
    if app.task_actions is not None:
        yield _of_app(app, "Make a task of my own", "From a CSV, TSV, JSONL or Parquet file (m)", "make_task")
    if app.settings_actions is not None:
        yield _of_app(app, "Settings", "Every setting, its value and where it comes from (F2)", "settings")
    if app.examine is not None:
        yield _of_app(app, "Doctor", "What works on this machine, and how to fix the rest (d)", "doctor")
    yield _of_app(app, "Theme", "Night, day, high contrast and others", "change_theme")
    yield _of_app(app, "Help", "Keys and words (?)", "help")
    leaving = "Stop the node, or keep it working in the background (q)" if app.feed.controls else "Close this (q)"
    yield _of_app(app, "Quit", leaving, "leave")
    yield from _of_screens(app)


def _of_app(app: DashboardHost, title: str, text: str, action: str) -> SystemCommand:
    return SystemCommand(title, text, partial(app.run_action, action))


def _of_screens(app: DashboardHost) -> Iterator[SystemCommand]:
    """The actions behind the screens' keys: the open screen's first, then those of the others. They are
    found by typing only, so that the initial list stays short."""
    here = next((screen for screen in reversed(app.screen_stack) if screen.__module__.startswith("sapo_desktop")), None)
    modes = {mode: (title, _owner(mode)) for mode, title, _ in _SCREENS if mode in app.modes}
    if here is not None and type(here) not in [owner for _, owner in modes.values()]:
        for binding in _told(type(here)):
            go = partial(here.run_action, binding.action)
            yield SystemCommand(f"Here: {binding.description}", _help(type(here), binding), go, discover=False)
    for mode, (title, owner) in sorted(modes.items(), key=lambda pair: pair[0] != app.current_mode):
        for binding in _told(owner):
            go = partial(_on_screen, app, mode, binding.action)
            yield SystemCommand(f"{title}: {binding.description}", _help(owner, binding), go, discover=False)


def create_mode_screen(mode: str) -> Screen[None]:
    """The screen of a mode, imported when first opened. The app's styles already apply to it; Textual would consider it
    outdated and parse all of them again."""
    screen = _owner(mode)()
    screen._css_update_count = screen.app._css_update_count
    return screen


def _owner(mode: str) -> type[Screen[None]]:
    module, _, name = OWNERS[mode].partition(":")
    screen: type[Screen[None]] = getattr(import_module(f"sapo_desktop.dashboard.screens.{module}"), name)
    return screen


def _told(owner: type) -> Iterator[Binding]:
    return (binding for binding in own_bindings(owner) if binding.key != _LEAVING)


def _help(owner: type, binding: Binding) -> str:
    return f"{describe_binding(owner, binding)} ({key_label(binding.key.partition(',')[0])})"


async def _on_screen(app: DashboardHost, mode: str, action: str) -> None:
    if app.current_mode != mode:
        await app.switch_mode(mode)
    await app.screen.run_action(action)


def _control(app: DashboardHost) -> Iterator[SystemCommand]:
    """The commands for the node."""
    yield _of_app(app, "Pause or resume", "Takes effect within a second (space)", "toggle_pause")
    yield _of_app(app, "Finish the round, then pause", "Nothing is thrown away (F)", "finish")
    yield _of_app(app, "Snooze", "Pause for 15, 60 or 240 minutes (z)", "snooze")
    anyway = "Ignore battery, heat and schedule; memory and disk still count (r)"
    yield _of_app(app, "Run anyway for an hour", anyway, "run_anyway")
    evaluate = partial(app.command, "evaluate", "Evaluating after this round")
    yield SystemCommand("Evaluate now", "Held-out pass@1 after this round", evaluate)
