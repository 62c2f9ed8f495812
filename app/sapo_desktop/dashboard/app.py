"""The dashboard application: one state, one timer, screens as modes. A client of the node, never its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme

from sapo_desktop.dashboard.actions import DashboardActions, Start
from sapo_desktop.dashboard.host import Examine
from sapo_desktop.dashboard.look import DEFAULTS, THEMES, AsciiFilter, choose_glyphs
from sapo_desktop.dashboard.palette import OWNERS, create_mode_screen, palette_commands
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState, EventFeed, ReplayCaption, ReplayRewound, apply_event
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.streams import to_nowhere

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks


# The terminal that shows the dashboard: detects that it is gone (a closed window, a dropped ssh, a closed browser tab), and
# restores it when the program continues after being stopped.
#
# A terminal may disappear without a signal. Reads then return nothing, immediately and for ever, and Textual's input thread would
# spin on it. So a thread checks twice a second, at next to no cost, and ends the dashboard; the node is not affected.

LOOK_S = 0.5
GRACE_S = 5.0
"""Seconds until a dashboard that has not ended (its output may hang on the dead terminal) is killed."""


def hung_up(descriptor: int) -> bool:
    """Whether this terminal or pipe will never deliver input again: it is readable but holds no bytes. Unix only."""
    import fcntl
    import termios

    try:
        if not select.select([descriptor], [], [], 0)[0]:
            return False
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return True
    return not any(waiting)


class _Stoppable(Driver):
    """A driver that survives being stopped from outside (SIGSTOP), which does not release the terminal as Ctrl+Z does. Textual's
    driver starts again on each resume: two more threads and 80 KB each time, which compete for the keys and never end."""

    _given_back = False

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._given_back = True

    def resume_application_mode(self) -> None:
        """Also called from a signal handler, which must not wait for a thread."""
        if self._given_back:
            self._given_back = False
            super().resume_application_mode()
        else:
            asyncio.get_running_loop().call_soon_threadsafe(self._take_again)

    def _take_again(self) -> None:
        """Set the terminal up again: the shell may have changed it meanwhile."""
        self.suspend_application_mode()
        self.resume_application_mode()


def stoppable_driver(driver: type[Driver]) -> type[Driver]:
    """The driver class, extended to set the terminal up again after a stop."""
    return type(driver.__name__, (_Stoppable, driver), {})


def watch_terminal(gone: Callable[[], None], ended: Callable[[], None]) -> None:
    """Call `gone` on the running loop once the terminal is gone, `ended` on SIGHUP and SIGTERM. Main thread only."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":  # closing a console ends its programs
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, ended)
    threading.Thread(target=_look, args=(loop, gone), name="lifeline", daemon=True).start()


def _look(loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
    outputs = [1, 2] if os.isatty(2) else [1]
    empty = 0
    while empty < 2:  # one may be chance: the input thread can read the key between the two checks
        time.sleep(LOOK_S)
        empty = empty + 1 if hung_up(0) else 0
    to_nowhere(*outputs)
    with contextlib.suppress(RuntimeError):  # the loop has just closed: the dashboard was exiting anyway
        loop.call_soon_threadsafe(gone)
    time.sleep(GRACE_S)
    os._exit(0)


FOCUSED_S, BLURRED_S = 0.5, 2.0
"""Seconds between refreshes: 2 Hz while the terminal has the focus, 0.5 Hz while it has not."""
_BATCH_S = 0.02
"""A long history is read in slices of this many seconds, so that keys are handled in between."""
_MANY, _QUIET_S = 20, 0.03
"""From this many events in a slice it counts as history, not news; seconds after its last slice until it is drawn."""


class SapoDashboard(DashboardActions):
    """Shows a feed. Its return value says how the person left: "background", "stop", or None (a recording, a lost terminal).

    On "stop" the caller ends the node and verifies that it is gone.
    """

    CSS_PATH = "sapo.tcss"
    TITLE = "sapo-desktop"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        mode: partial(create_mode_screen, mode) for mode in OWNERS if mode != "models"
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
        Binding("m", "make_task", "make a task", show=False),
        Binding("f2", "settings", "settings", show=False),
        Binding(
            "question_mark,f1", "help", "help", show=False, priority=True
        ),  # works over dialogs; in a field ? is text
        Binding("left_square_bracket", "seek(-1)", "replay: back", show=False),
        Binding("right_square_bracket", "seek(1)", "replay: forth", show=False),
        Binding("circumflex_accent", "seek(0)", "replay: from the beginning", show=False),
        Binding("comma", "speed(-1)", "replay: slower", show=False),
        Binding("full_stop", "speed(1)", "replay: faster", show=False),
        Binding("q", "leave", "quit", show=False),
        Binding("ctrl+q,ctrl+c", "leave", "quit", show=False, priority=True),  # works over dialogs and in fields
    ]

    def __init__(
        self,
        feed: EventFeed,
        first_run: bool = False,
        start: Start | None = None,
        info: Callable[[], FirstRunInfo] = FirstRunInfo,
        glyphs: str = "auto",
        theme: str = "sapo-dark",
        model_actions: HomeModels | None = None,
        swarm_actions: HomeActions | None = None,
        settings_actions: HomeSettings | None = None,
        task_actions: HomeTasks | None = None,
        examine: Examine | None = None,
        cache: Path | None = None,
    ) -> None:
        """info: looks up what the first-run screen offers, after the first frame. glyphs: auto, unicode or ascii.

        model_actions: the actions of screen 4; without them the screen does not exist. swarm_actions: the actions of
        screen 2; without them it is read-only. settings_actions: the actions of F2; without them there is no F2. task_actions:
        the actions of the task wizard; without them there is no wizard. examine: the doctor. cache: the folder for the index of
        rollouts, None: in memory. Raises ValueError for an unknown glyph set.
        """
        self.glyphs = choose_glyphs(glyphs)
        self.feed, self.first_run, self.start = feed, first_run, start
        self.info, self.cache = info, cache
        self.model_actions, self.task_actions = model_actions, task_actions
        self.swarm_actions = swarm_actions
        self.settings_actions, self.examine = settings_actions, examine
        self.state = DashboardState()
        self._caption: ReplayCaption | None = None
        self._first_is_out = self.begun = False
        self._pasted = ""
        """What was pasted before the first questions were there."""
        super().__init__(driver_class=stoppable_driver(self.get_driver_class()))
        self.animation_level = "none"  # no animations, least of all over SSH
        if model_actions is not None:
            self.add_mode("models", partial(create_mode_screen, "models"))
        for palette in THEMES:
            self.register_theme(palette)
        self._unknown_theme = theme if theme not in self.available_themes else ""
        self._begin_in(THEMES[0].name if self._unknown_theme else theme)

    def _begin_in(self, theme: str) -> None:
        """Set the first frame's theme before any style is parsed; set later, all styles would be parsed again."""
        self.set_reactive(SapoDashboard.theme, theme)
        dark, old = self.current_theme.dark, [name for name in self.classes if name.startswith("-theme-")]
        now = {f"-theme-{theme}": True, "-dark-mode": dark, "-light-mode": not dark}
        self.update_classes(dict.fromkeys(old, False) | now, update=False)
        self.stylesheet.set_variables(self.get_css_variables())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable key 4 without models (over a recording), and seeking without a recording."""
        if action in ("seek", "speed"):
            return self.player is not None and self.player.steers
        return action != "switch_mode" or parameters[0] in self.modes

    def _keep_theme(self, theme: Theme) -> None:
        """Save a theme chosen in the palette for the next start."""
        if self.settings_actions is not None:
            self.work(partial(self._save_theme, self.settings_actions, theme.name), "theme")

    async def _save_theme(self, actions: HomeSettings, name: str) -> None:
        try:
            await actions.change("ui.theme", name)
        except USER_ERRORS as error:
            self.say(f"The theme is not kept. {error}", error=True)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """In ASCII mode a final filter on every line, so that the terminal can show any text."""
        return [*super().get_line_filters(), *([AsciiFilter()] if self.glyphs.ascii else [])]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Defaults for our colour variables, for themes that do not define them."""
        return DEFAULTS

    def delay_update(self, delay: float = 0.05) -> None:
        """Textual hides a change of mode for 50 ms, the whole budget of a key press; our screens need a tenth of that."""
        super().delay_update(min(delay, 0.005))

    def on_mount(self) -> None:
        """Start the refresh timer; the feed begins after the first frame."""
        self.set_class(self.glyphs.ascii, "-ascii")
        self._timer = self.set_interval(FOCUSED_S, self.redraw)
        if not self.is_headless:
            watch_terminal(gone=partial(self.exit, None), ended=partial(self.exit, "background"))
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        self.call_after_refresh(self._first_frame_is_out)
        self.set_timer(FOCUSED_S, self._first_frame_is_out)  # a screen opened by an early key delays the refresh

    def _first_frame_is_out(self) -> None:
        if self._first_is_out:
            return
        self._first_is_out = True
        if self._unknown_theme:
            self.say(f"There is no theme {self._unknown_theme!r}: showing {self.theme}. ctrl+p lists them.", error=True)
        if not self.first_run:
            return self._begin(None)
        from sapo_desktop.dashboard.screens.first_run import FirstRunScreen

        self.push_screen(FirstRunScreen(self.info(), self._pasted), self._begin_or_leave)

    def on_paste(self, event: events.Paste) -> None:
        """Keep a file that is dropped, or an invite that is pasted, before the first questions are there."""
        if self.first_run and not self._first_is_out:
            self._pasted = event.text

    def _begin_or_leave(self, answers: FirstRunAnswers | None) -> None:
        if answers is None:
            self.leave_unstarted()
        else:
            self._begin(answers)

    def _begin(self, answers: FirstRunAnswers | None) -> None:
        self.begun = True
        self.work(partial(self._work, answers), "feed")

    async def _work(self, answers: FirstRunAnswers | None) -> None:
        """Start the node, then follow the feed until it ends."""
        await self.start_node(answers)
        breath, taken, soon = time.monotonic(), 0, None
        async for event in self.feed.events():
            self.state = DashboardState() if isinstance(event, ReplayRewound) else apply_event(self.state, event)
            taken += 1
            if time.monotonic() - breath > _BATCH_S:
                if taken >= _MANY:  # a history is loading: redraw once it is loaded, not at the next tick
                    if soon is not None:
                        soon.cancel()
                    soon = asyncio.get_running_loop().call_later(_QUIET_S, self.redraw)
                await asyncio.sleep(0)
                breath, taken = time.monotonic(), 0

    # Drawing

    def redraw(self) -> None:
        """Pass the state to the active screen; called by the timer, by keys and when a screen opens."""
        self._follow_caption()
        screen = next((top for top in reversed(self.screen_stack) if isinstance(top, BaseScreen)), None)
        if screen is not None and screen.is_mounted:
            with suppress(NoMatches):  # a tick while the screen is being removed
                screen.show(self.state, self.feed.now())

    def _follow_caption(self) -> None:
        """Switch to the screen of a new caption, once no dialog is open; afterwards the person may switch away."""
        caption = self.player.caption if self.player is not None else None
        if caption is not self._caption and isinstance(self.screen, BaseScreen):
            self._caption = caption
            if caption is not None and caption.screen and caption.screen != self.current_mode:
                self.switch_mode(caption.screen)

    def on_app_focus(self) -> None:
        """Refresh often while the terminal has the focus."""
        self._pace(FOCUSED_S)

    def on_app_blur(self) -> None:
        """Refresh rarely while it does not."""
        self._pace(BLURRED_S)

    def _pace(self, seconds: float) -> None:
        self._timer.stop()
        self._timer = self.set_interval(seconds, self.redraw)
        self.redraw()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual passes it
        """The commands of the palette."""
        return palette_commands(self)
