"""What screens and the palette may ask of the application that shows them; app.py implements it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.messages import Feed, Player, QuitChoice
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.services.machine.finding import Finding
from sapo_desktop.settings.rows import SettingsActions

if TYPE_CHECKING:  # a first frame waits for none of these
    from sapo_desktop.services.models.screen.interface import ModelActions
    from sapo_desktop.services.swarms.interface import SwarmActions
    from sapo_desktop.services.tasks.wizard.interface import TaskActions

Examine = Callable[[], AsyncIterator[Finding]]
"""Findings one by one; raises CommandFailed. They are made outside this process: looking at engines is heavy."""


class DashboardHost(App[QuitChoice]):
    """The application as its screens see it. Actions that are None are not to be had (a recording, for example)."""

    glyphs: Glyphs
    feed: Feed
    cache: Path | None
    state: DashboardState
    model_actions: ModelActions | None
    swarm_actions: SwarmActions | None
    settings_actions: SettingsActions | None
    task_actions: TaskActions | None
    examine: Examine | None

    @property
    @abstractmethod
    def modes(self) -> tuple[str, ...]:
        """The screens that there are, in order."""

    @property
    @abstractmethod
    def player(self) -> Player | None:
        """How the recording is steered; None over a node."""

    @abstractmethod
    def redraw(self) -> None:
        """Give the active screen the state."""

    @abstractmethod
    def command(self, verb: str, said: str, **body: float) -> None:
        """Tell the node, and say what was told or why it was not taken."""

    @abstractmethod
    def answer_again(self) -> None:
        """The first questions once more."""

    @abstractmethod
    def say(self, text: str, error: bool = False) -> None:
        """A toast, as plain text."""

    # The actions that keys, the footer's buttons and the palette share.

    @abstractmethod
    def action_toggle_pause(self) -> None:
        """Pause or resume, or start a node that is gone."""
        ...

    @abstractmethod
    def action_finish(self) -> None:
        """Finish the round in flight, then pause."""
        ...

    @abstractmethod
    def action_run_anyway(self) -> None:
        """Override the automatic rules for an hour, or end that."""
        ...

    @abstractmethod
    def action_snooze(self) -> None:
        """Pause for a time that is asked for."""
        ...

    @abstractmethod
    def action_help(self) -> None:
        """Keys and words."""
        ...

    @abstractmethod
    def action_settings(self) -> None:
        """Show and change the settings."""
        ...

    @abstractmethod
    def action_make_task(self) -> None:
        """A task from a file of the person's."""
        ...

    @abstractmethod
    def action_doctor(self) -> None:
        """What works on this machine."""
        ...

    @abstractmethod
    def action_leave(self) -> None:
        """Leave the dashboard; what becomes of the node is asked."""
        ...
