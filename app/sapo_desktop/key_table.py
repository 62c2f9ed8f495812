"""The table of all dashboard keys by screen, generated from the bindings in the code."""

from __future__ import annotations

from collections.abc import Iterator

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import PALETTE, binding_rows
from sapo_desktop.dashboard.screens.bases import BasesDialog
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog, QuitDialog, SnoozeDialog
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
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

PLACES: tuple[tuple[str, type], ...] = (
    ("everywhere", SapoDashboard),
    ("1 dashboard", DashboardScreen),
    ("2 swarm", SwarmScreen),
    ("the Aha trail", TrailDialog),
    ("an invite", JoinDialog),
    ("a swarm to join", FindDialog),
    ("the hosted swarm", HostedDialog),
    ("a task of the swarm", TaskDialog),
    ("3 rollouts", RolloutsScreen),
    ("two attempts", DiffScreen),
    ("rollouts to a file", ExportDialog),
    ("4 models", ModelsScreen),
    ("one model", ModelScreen),
    ("a new model", NewModelDialog),
    ("a model's name", NameDialog),
    ("a model's kept states", KeptStatesDialog),
    ("one of several", ChoiceDialog),
    ("two models", CompareScreen),
    ("an export", ExportScreen),
    ("chat", ChatScreen),
    ("5 log", LogScreen),
    ("settings", SettingsScreen),
    ("one setting", SettingEditor),
    ("a task: its file", PlacesScreen),
    ("a task: its rows", DraftScreen),
    ("a task: what to expect", MeasuringScreen),
    ("first questions", FirstRunScreen),
    ("first questions: a real model", BasesDialog),
    ("doctor", DoctorScreen),
    ("help", HelpScreen),
    ("leaving", QuitDialog),
    ("snooze", SnoozeDialog),
)


def key_table_lines() -> Iterator[str]:
    """The table, line by line."""
    yield "| where | key | what it does |\n|---|---|---|"
    for place, owner in PLACES:
        yield from (f"| {place} | {keys} | {text} |" for keys, text in binding_rows(owner))
    yield f"| everywhere | {' | '.join(PALETTE)} |"
