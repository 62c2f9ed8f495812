"""The actions behind keys, the footer's buttons and the palette."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from textual.app import ScreenStackError
from textual.events import Event
from textual.screen import ModalScreen
from textual.theme import ThemeProvider
from textual.widgets import Input
from textual.worker import Worker

from sapo_desktop.dashboard.host import DashboardHost
from sapo_desktop.dashboard.look import binding_rows
from sapo_desktop.dashboard.palette import ActionPalette
from sapo_desktop.dashboard.state import QuitChoice
from sapo_desktop.errors import USER_ERRORS, CommandFailed
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.tasks.wizard.interface import WizardResult

Start = Callable[[FirstRunAnswers | None], Awaitable[None] | None]
"""Starts or finds the node; called once after the first frame, with the answers of the first run or None."""


class DashboardActions(DashboardHost):
    """The application's actions; app.py shows the state and follows the feed."""

    info: Callable[[], FirstRunInfo]
    """What the first questions offer."""
    start: Start | None
    """None for a recording, where there is nothing to start."""
    begun: bool
    """Whether the feed is being followed (not while the first questions are asked)."""

    async def start_node(self, answers: FirstRunAnswers | None) -> None:
        """Start or find the node, with the answers of the first run if those questions were asked."""
        result = self.start(answers) if self.start is not None else None
        if inspect.isawaitable(result):
            await result

    async def on_event(self, event: Event) -> None:
        """Ignore keys that arrive while the app closes: there is no screen for them, and the error must not replace the
        value that the dashboard exits with."""
        try:
            await super().on_event(event)
        except ScreenStackError:
            if self.screen_stack:
                raise

    def work(self, function: Callable[[], Coroutine[None, None, None]], name: str) -> Worker[None]:
        """Run a worker, which creates the coroutine itself: Python warns of a coroutine that never runs because a key exits."""
        return self.run_worker(function, name=name, exit_on_error=True)

    def command(self, verb: str, said: str, **body: float) -> None:
        """Send the node a command, then show `said`, or why the command was refused."""
        self.work(partial(self._command, verb, said, body), f"command-{verb}")

    async def _command(self, verb: str, said: str, body: dict[str, float]) -> None:
        try:
            await self.feed.command(verb, **body)
        except CommandFailed as error:
            self.say(str(error), error=True)
        else:
            self.say(said)

    def action_toggle_pause(self) -> None:
        """Pause or resume the node, or start it if it is not running; hold a recording, or let it go on."""
        if self.player is not None and self.player.steers:
            self.player.hold()
            self.redraw()
        elif self.state.gone and self.start is not None:
            coming = any(worker.name == "start" for worker in self.workers)
            self.say("The node is starting" if coming else "Starting the node")
            if not coming:
                self.work(self._start_or_ask, "start")
        elif self.state.absent:
            self.say("The node is starting")
        elif self.state.resumable:
            self.command("resume", "Going on")
        else:
            self.command("pause", "Paused until space is pressed again")

    async def _start_or_ask(self) -> None:
        """Start the node; where no model is left to train, ask what the next one shall be."""
        try:
            listing = await self.model_actions.shelf() if self.model_actions is not None else None
        except USER_ERRORS as error:
            self.say(str(error), error=True)
            return
        if listing is not None and not listing.models and not listing.problems:
            self.say("There is no model to train: choose what the next one shall be")
            self.answer_again()
        else:
            await self.start_node(None)

    def action_seek(self, steps: int) -> None:
        """In a recording: back, forth, to its beginning. steps: -1, 1, 0."""
        if self.player is not None:
            self.player.seek(steps)
            self.redraw()

    def action_speed(self, steps: int) -> None:
        """A recording goes slower, or faster. steps: -1, 1."""
        if self.player is not None:
            self.player.faster(steps)
            self.redraw()

    def action_finish(self) -> None:
        """Finish the round in flight, then pause."""
        self.command("finish", "Finishing this round, then pausing")

    def action_run_anyway(self) -> None:
        """Override the automatic rules for an hour, not those of memory and disk; again: end that."""
        if self.state.anyway_until > time.time():
            self.command("obey", "The automatic rules count again")
            return
        self.command("run_anyway", "Running for an hour; memory and disk still count", for_s=3600)

    def action_snooze(self) -> None:
        """Pause for 15, 60 or 240 minutes."""
        from sapo_desktop.dashboard.screens.dialogs import SnoozeDialog

        if not self.feed.controls:
            self.say("There is no node to pause over a recording")
            return

        def chosen(minutes: int | None) -> None:
            if minutes:
                self.command("snooze", f"Snoozing for {minutes} minutes, then going on", for_s=60 * minutes)

        self.push_screen(SnoozeDialog(), chosen)

    def answer_again(self) -> None:
        """Ask the first questions again: the answers become the settings and a new model."""
        from sapo_desktop.dashboard.screens.first_run import FirstRunScreen

        def answered(answers: FirstRunAnswers | None) -> None:
            if answers is not None:
                self.say("The answers are the settings of new models now. Starting the node, if none runs")
                self.work(partial(self.start_node, answers), "start")

        if self.start is None:
            self.say("There is nothing to start over a recording")
        else:
            self.push_screen(FirstRunScreen(self.info()), answered)

    def action_help(self) -> None:
        """Show or close this help; F1 while a text is typed, too."""
        from sapo_desktop.dashboard.screens.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
            return
        places, typing = (self.screen, self.screen.focused), isinstance(self.screen.focused, Input)
        here = [row for place in places if place is not None for row in binding_rows(type(place), typing)]
        everywhere = binding_rows(type(self), typing, covered=isinstance(self.screen, ModalScreen))
        self.push_screen(HelpScreen(self.feed.describe(), here, everywhere, self.glyphs, typing))

    def action_command_palette(self) -> None:
        """Open it, once: Textual looks for one on top only, and a second one below another screen ends the app."""
        if not any(isinstance(screen, ActionPalette) for screen in self.screen_stack):
            self.push_screen(ActionPalette())

    def search_themes(self) -> None:
        """Choose a theme by name."""
        self.push_screen(ActionPalette(providers=[ThemeProvider], placeholder="A theme"))

    def action_settings(self) -> None:
        """Show and change the settings."""
        from sapo_desktop.dashboard.screens.settings import SettingsScreen

        if self.settings_actions is None:
            self.say("There are no settings to change over a recording")
        elif not isinstance(self.screen, SettingsScreen):
            self.push_screen(SettingsScreen(self.settings_actions))

    def action_make_task(self) -> None:
        """Make a task of my own from a file, and train a model on it."""
        from sapo_desktop.dashboard.screens.task_wizard import PlacesScreen

        if (actions := self.task_actions) is None:
            self.say("There are no tasks to be made over a recording")
            return

        async def train(made: WizardResult) -> None:
            self.say(f"Starting a model on {made.task}")
            if await self.told(actions.train(made.task, made.base)):
                self.switch_mode("dashboard")

        def done(made: WizardResult | None) -> None:
            if made is not None:
                self.work(partial(train, made), "train-on")

        self.push_screen(PlacesScreen(actions), done)

    def action_doctor(self) -> None:
        """Show what works on this machine."""
        from sapo_desktop.dashboard.screens.help import DoctorScreen

        if self.examine is None:
            self.say("There is nothing to examine over a recording. In a terminal: sapo-desktop doctor")
        else:
            self.push_screen(DoctorScreen(self.examine, self.glyphs))

    def action_next_screen(self) -> None:
        """The next mode in order, for the mouse."""
        names = self.modes
        self.switch_mode(names[(names.index(self.current_mode) + 1) % len(names)])

    def action_leave(self) -> None:
        """Quit: stop the node, or keep it working in the background. A recording, a node that is gone and the first questions
        leave nothing to ask."""
        from sapo_desktop.dashboard.screens.first_run import FirstRunScreen

        if not self.begun and any(isinstance(screen, FirstRunScreen) for screen in self.screen_stack):
            self.leave_unstarted()
            return
        if not self.feed.controls or self.state.gone:
            self.exit("stop" if self.feed.controls else None)
            return
        from sapo_desktop.dashboard.screens.dialogs import QuitDialog

        if not isinstance(self.screen, QuitDialog):
            self.push_screen(QuitDialog(), self._left)

    def leave_unstarted(self) -> None:
        """Exit from the first questions without answers."""
        self.exit(None, message="Nothing was started. The questions come again: sapo-desktop")

    def _left(self, choice: QuitChoice | None) -> None:
        if choice is not None:
            self.exit(choice)
