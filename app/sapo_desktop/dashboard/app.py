"""The dashboard application: one state, one timer, screens as modes. A client of the node, never its owner."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme

from sapo_desktop.dashboard import terminal_gone
from sapo_desktop.dashboard.host import DashboardHost, Examine
from sapo_desktop.dashboard.look.ascii import AsciiFilter
from sapo_desktop.dashboard.look.glyphs import choose
from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.look.themes import DEFAULTS, THEMES
from sapo_desktop.dashboard.messages import Feed, QuitChoice
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState, apply
from sapo_desktop.errors import CommandFailed
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.models.screen.interface import ModelActions
from sapo_desktop.services.swarms.interface import SwarmActions
from sapo_desktop.settings.rows import SettingRefused, SettingsActions

FOCUSED_S, BLURRED_S = 0.5, 2.0
"""Seconds between two looks at the state: 2 Hz while the terminal has the focus, 0.5 Hz while it has not."""
_BATCH_S = 0.02
"""A long history is read in slices of this length, so that keys are answered meanwhile."""

Start = Callable[[FirstRunAnswers | None], Awaitable[None] | None]
"""Called once after the first frame, with the answers of the first run or None: starts or finds the node."""


def _dashboard() -> Screen[None]:
    from sapo_desktop.dashboard.screens.dashboard import DashboardScreen

    return DashboardScreen()


def _swarm() -> Screen[None]:
    from sapo_desktop.dashboard.screens.swarm.screen import SwarmScreen

    return SwarmScreen()


def _rollouts() -> Screen[None]:
    from sapo_desktop.dashboard.screens.rollouts import RolloutsScreen

    return RolloutsScreen()


def _models() -> Screen[None]:
    from sapo_desktop.dashboard.screens.models.screen import ModelsScreen

    return ModelsScreen()


def _log() -> Screen[None]:
    from sapo_desktop.dashboard.screens.log import LogScreen

    return LogScreen()


class SapoDashboard(DashboardHost):
    """Shows a feed. Its return value is how it was left: "background", "stop", or None (a recording, a lost terminal).

    At "stop" whoever opened the dashboard ends the node, and proves that it is gone.
    """

    CSS_PATH = "sapo.tcss"
    TITLE = "sapo-desktop"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "dashboard": _dashboard,
        "swarm": _swarm,
        "rollouts": _rollouts,
        "log": _log,
    }
    DEFAULT_MODE = "dashboard"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "switch_mode('dashboard')", "dashboard", show=False),
        Binding("2", "switch_mode('swarm')", "swarm", show=False),
        Binding("3", "switch_mode('rollouts')", "rollouts", show=False),
        Binding("4", "switch_mode('models')", "models", show=False),
        Binding("5", "switch_mode('log')", "log", show=False),
        Binding("space", "toggle_pause", "pause", show=False),
        Binding("F", "finish", "finish round", show=False),
        Binding("z", "snooze", "snooze", show=False),
        Binding("r", "run_anyway", "run 1 h", show=False),
        Binding("d", "doctor", "doctor", show=False),
        Binding("f2", "settings", "settings", show=False),
        Binding("question_mark,f1", "help", "help", show=False),
        Binding("q,ctrl+q,ctrl+c", "leave", "quit", show=False),
    ]

    def __init__(
        self,
        feed: Feed,
        first_run: bool = False,
        start: Start | None = None,
        info: Callable[[], FirstRunInfo] = FirstRunInfo,
        glyphs: str = "auto",
        theme: str = "sapo-dark",
        model_actions: ModelActions | None = None,
        swarm_actions: SwarmActions | None = None,
        settings_actions: SettingsActions | None = None,
        examine: Examine | None = None,
    ) -> None:
        """info: looks up what the first-run screen offers, after the first frame. glyphs: auto, unicode or ascii.

        model_actions: what screen 4 can have done; without them there is no such screen. swarm_actions: what screen 2 can have
        done; without them it only shows. settings_actions: what F2 can have done; without them there is no F2. examine: the
        doctor. Raises ValueError.
        """
        self.glyphs = choose(glyphs)
        self.feed, self.first_run, self.start = feed, first_run, start
        self.info = info
        self.model_actions = model_actions
        self.swarm_actions = swarm_actions
        self.settings_actions, self.examine = settings_actions, examine
        self.state = DashboardState()
        self.begun = False
        """The feed is being followed (not so while the first questions are asked)."""
        super().__init__()
        self.animation_level = "none"  # nothing here moves without a reason, least of all over SSH
        if model_actions is not None:
            self.add_mode("models", _models)
        for palette in THEMES:
            self.register_theme(palette)
        self._unknown_theme = theme if theme not in self.available_themes else ""
        self.theme = THEMES[0].name if self._unknown_theme else theme

    @property
    def modes(self) -> tuple[str, ...]:
        """The screens that there are, in order."""
        return tuple(self._modes)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Key 4 does nothing where there are no models to be had: over a recording."""
        return action != "switch_mode" or parameters[0] in self.modes

    def _keep_theme(self, theme: Theme) -> None:
        """A theme chosen in the palette stays for the next time."""
        if self.settings_actions is not None:
            self.run_worker(self._save_theme(self.settings_actions, theme.name), name="theme", exit_on_error=True)

    async def _save_theme(self, actions: SettingsActions, name: str) -> None:
        try:
            await actions.change("ui.theme", name)
        except SettingRefused as error:
            self.say(f"The theme is not kept. {error}", error=True)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """In ASCII mode the last thing done to a line: whatever text is on it, the terminal can show it."""
        return [*super().get_line_filters(), *([AsciiFilter()] if self.glyphs.ascii else [])]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our colours for themes that do not know them."""
        return DEFAULTS

    def delay_update(self, delay: float = 0.05) -> None:
        """Textual hides a change of mode for 50 ms: all that a key may take. Our screens need a tenth of it."""
        super().delay_update(min(delay, 0.005))

    def on_mount(self) -> None:
        """Start the clock of the screens; the feed begins after the first frame."""
        self.set_class(self.glyphs.ascii, "-ascii")
        self._timer = self.set_interval(FOCUSED_S, self.redraw)
        if not self.is_headless:
            terminal_gone.watch(gone=partial(self.exit, None), ended=partial(self.exit, "background"))
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        self.call_after_refresh(self._first_frame_is_out)

    def _first_frame_is_out(self) -> None:
        if self._unknown_theme:
            self.say(f"There is no theme {self._unknown_theme!r}: showing {self.theme}. ctrl+p lists them.", error=True)
        if self.first_run:
            self._ask_first_questions()
        else:
            self._begin(None)

    def _ask_first_questions(self) -> None:
        from sapo_desktop.dashboard.screens.first_run import FirstRunScreen

        self.push_screen(FirstRunScreen(self.info()), self._begin)

    def _begin(self, answers: FirstRunAnswers | None) -> None:
        self.begun = True
        self.run_worker(self._work(answers), name="feed", exit_on_error=True)

    async def _work(self, answers: FirstRunAnswers | None) -> None:
        """Start the node, then follow it for as long as there is something to follow."""
        await self._start(answers)
        breath = time.monotonic()
        async for event in self.feed.events():
            self.state = apply(self.state, event)
            if time.monotonic() - breath > _BATCH_S:
                await asyncio.sleep(0)
                breath = time.monotonic()

    async def _start(self, answers: FirstRunAnswers | None) -> None:
        result = self.start(answers) if self.start is not None else None
        if inspect.isawaitable(result):
            await result

    # Drawing

    def redraw(self) -> None:
        """Give the active screen the state; called by the timer, by keys and when a screen comes up."""
        screen = next((one for one in reversed(self.screen_stack) if isinstance(one, BaseScreen)), None)
        if screen is not None and screen.is_mounted:
            with suppress(NoMatches):  # a tick while the screen is being taken down
                screen.show(self.state, self.feed.now())

    def on_app_focus(self) -> None:
        """Look often while somebody may be looking."""
        self._pace(FOCUSED_S)

    def on_app_blur(self) -> None:
        """Look seldom while nobody is."""
        self._pace(BLURRED_S)

    def _pace(self, seconds: float) -> None:
        self._timer.stop()
        self._timer = self.set_interval(seconds, self.redraw)
        self.redraw()

    # Commands

    def command(self, verb: str, said: str, **body: float) -> None:
        """Tell the node, and say what was told or why it was not taken."""
        self.run_worker(self._command(verb, said, body), name=f"command-{verb}", exit_on_error=True)

    async def _command(self, verb: str, said: str, body: dict[str, float]) -> None:
        try:
            await self.feed.command(verb, **body)
        except CommandFailed as error:
            self.say(str(error), error=True)
        else:
            self.say(said)

    def say(self, text: str, error: bool = False) -> None:
        """A toast, as plain text."""
        self.notify(plain(text, 400), severity="error" if error else "information", timeout=4, markup=False)

    def action_toggle_pause(self) -> None:
        """Pause or resume the node, or start it where it is gone."""
        if self.state.gone and self.start is not None:
            self.say("Starting the node")
            self.run_worker(self._start(None), name="start", group="start", exclusive=True)
        elif self.state.paused:
            self.command("resume", "Going on")
        else:
            self.command("pause", "Paused until space is pressed again")

    def action_finish(self) -> None:
        """Finish the round in flight, then pause."""
        self.command("finish", "Finishing this round, then pausing")

    def action_run_anyway(self) -> None:
        """Override the automatic rules for an hour."""
        self.command("run_anyway", "Running for an hour whatever the automatic rules say", for_s=3600)

    def action_snooze(self) -> None:
        """Ask for how long, then pause for that time."""
        from sapo_desktop.dashboard.screens.dialogs import SnoozeDialog

        def chosen(minutes: int | None) -> None:
            if minutes:
                self.command("snooze", f"Snoozing for {minutes} minutes, then going on", for_s=60 * minutes)

        self.push_screen(SnoozeDialog(), chosen)

    def action_help(self) -> None:
        """Show keys and words."""
        from sapo_desktop.dashboard.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.feed.describe()))

    def action_settings(self) -> None:
        """Show and change the settings."""
        from sapo_desktop.dashboard.screens.settings.screen import SettingsScreen

        if self.settings_actions is None:
            self.say("There are no settings to change over a recording")
        elif not isinstance(self.screen, SettingsScreen):
            self.push_screen(SettingsScreen(self.settings_actions))

    def action_doctor(self) -> None:
        """Show what works on this machine."""
        from sapo_desktop.dashboard.screens.doctor import DoctorScreen

        if self.examine is None:
            self.say("There is nothing to examine over a recording. In a terminal: sapo-desktop doctor")
        else:
            self.push_screen(DoctorScreen(self.examine, self.glyphs))

    def action_next_screen(self) -> None:
        """The next mode in order, for the mouse."""
        names = self.modes
        self.switch_mode(names[(names.index(self.current_mode) + 1) % len(names)])

    def action_leave(self) -> None:
        """Ask what becomes of the node; a recording, and a node that is gone, leave nothing to ask."""
        if not self.feed.controls or self.state.gone:
            self.exit("stop" if self.feed.controls else None)
            return
        from sapo_desktop.dashboard.screens.dialogs import QuitDialog

        if not isinstance(self.screen, QuitDialog):
            self.push_screen(QuitDialog(), self._left)

    def _left(self, choice: QuitChoice | None) -> None:
        if choice is not None:
            self.exit(choice)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual passes it
        """What the palette offers."""
        from sapo_desktop.dashboard.palette import commands

        return commands(self)
