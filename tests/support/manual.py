"""Generates docs/manual.md from the verbs, keys, glossary and settings schema: python -m tests.support.manual > docs/manual.md"""

from __future__ import annotations

from collections.abc import Iterator

from sapo_desktop import settings
from sapo_desktop.cli import GROUPS
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import LISTS, PALETTE, binding_rows
from sapo_desktop.dashboard.screens.dashboard import DashboardScreen
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog, QuitDialog, SnoozeDialog
from sapo_desktop.dashboard.screens.first_run import BasesDialog, FirstRunScreen
from sapo_desktop.dashboard.screens.help import WORDS, DoctorScreen, HelpScreen
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
from sapo_swarm.events import STATES

CODES = ("0 ok", "1 error", "2 wrong usage", "3 no node is running", "4 no engine for it is installed")


def manual_lines() -> Iterator[str]:
    """The manual, line by line."""
    yield "# Manual\n"
    yield "Made from the code by `python -m tests.support.manual`; a test keeps it so.\n"
    yield "## Verbs\n"
    yield "`sapo-desktop` alone opens the dashboard. `sapo-desktop VERB --help` explains every flag.\n"
    for group, verbs in GROUPS.items():
        yield f"\n**{group}**\n\n| verb | what it does |\n|---|---|"
        yield from (f"| `{verb}` | {text} |" for verb, (_, text) in verbs.items())
    yield f"\nExit codes: {', '.join(CODES)}.\n"
    yield "## Keys of the dashboard\n"
    yield f"Made from the bindings. {LISTS}\nA click on a key in the last line presses it.\n"
    yield from key_table_lines()
    yield f"\nA node is in one of these states: {', '.join(STATES)}.\n"
    yield "## Words\n"
    yield "As the dashboard's help (`?`) has them.\n"
    yield "| word | meaning |\n|---|---|"
    yield from (f"| {word} | {meaning} |" for word, meaning in WORDS)
    yield "\n## Settings\n"
    yield "In `config.toml` (`sapo-desktop config path`), as flags of `node`, or by `sapo-desktop config set KEY VALUE`."
    yield "`run.*` counts for new models; an existing one keeps its own: `node NAME --temperature 0.9`.\n"
    yield "| key | what it is | kind | default |\n|---|---|---|---|"
    for field in settings.setting_fields():
        default = settings.format_value(field.default).replace(",", ", ")
        kind = field.kind.replace("|", " or ")
        yield f"| `{field.key}` | {field.help} | {kind} | {default if default != '' else '(empty)'} |"
    yield "\n`SAPO_HOME=FOLDER` moves settings, runs, logs and the socket into one folder."


def render_manual() -> str:
    """The whole page, as docs/manual.md has it."""
    return "\n".join(manual_lines()) + "\n"


# The table of all dashboard keys by screen, from the bindings in the code.

PLACES: tuple[tuple[str, type], ...] = (
    ("everywhere", SapoDashboard),
    ("1 dashboard", DashboardScreen),
    ("2 swarm", SwarmScreen),
    ("who solved what first", TrailDialog),
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


if __name__ == "__main__":
    print(render_manual(), end="")
