"""Every action by name, for the command palette (ctrl+p)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.app import SystemCommand

from sapo_desktop.dashboard.host import DashboardHost

_SCREENS = (
    ("dashboard", "Dashboard", "Charts, held-out results, what it does now (1)"),
    ("swarm", "Swarm", "Peers, shares, what was rejected and why (2)"),
    ("rollouts", "Rollouts", "Questions, attempts and rewards (3)"),
    ("models", "My models", "What they gained; train, compare, chat, export, delete (4)"),
    ("log", "Log", "Dated lines, searchable (5)"),
)


def commands(app: DashboardHost) -> Iterator[SystemCommand]:
    """Every action that the palette offers, with what it does."""
    for mode, title, text in _SCREENS:
        if mode in app.modes:
            yield SystemCommand(title, text, partial(app.switch_mode, mode))
    if app.feed.controls:
        yield from _control(app)
    if app.task_actions is not None:
        yield SystemCommand("Make a task of my own", "From a CSV, TSV, JSONL or Parquet file (m)", app.action_make_task)
    if app.settings_actions is not None:
        yield SystemCommand("Settings", "Every setting, its value and where it comes from (F2)", app.action_settings)
    if app.examine is not None:
        yield SystemCommand("Doctor", "What works on this machine, and what mends the rest (d)", app.action_doctor)
    yield SystemCommand("Theme", "Night, day, high contrast and others", app.action_change_theme)
    yield SystemCommand("Help", "Keys and words (?)", app.action_help)
    leaving = "Stop everything or keep working in the background (q)" if app.feed.controls else "Close this (q)"
    yield SystemCommand("Quit", leaving, app.action_leave)


def _control(app: DashboardHost) -> Iterator[SystemCommand]:
    """What tells the node something."""
    yield SystemCommand("Pause or resume", "Takes effect within a second (space)", app.action_toggle_pause)
    yield SystemCommand("Finish the round, then pause", "Nothing is thrown away (F)", app.action_finish)
    yield SystemCommand("Snooze", "Pause for 15, 60 or 240 minutes (z)", app.action_snooze)
    yield SystemCommand("Run anyway for an hour", "Whatever the automatic rules say (r)", app.action_run_anyway)
    evaluate = partial(app.command, "evaluate", "Evaluating after this round")
    yield SystemCommand("Evaluate now", "Held-out pass@1 after this round", evaluate)
