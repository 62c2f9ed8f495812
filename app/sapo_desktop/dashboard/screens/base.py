"""What every screen shares: the header line, the footer, the message for a terminal that is too small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from sapo_desktop.dashboard.host import DashboardHost
from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.header import header
from sapo_desktop.dashboard.widgets.keybar import Key, KeyBar
from sapo_desktop.dashboard.widgets.panel import Panel

MIN_WIDTH, MIN_HEIGHT, WIDE = 80, 24, 100


class BaseScreen(Screen[None]):
    """A mode of the dashboard. Subclasses give `body()` and `update()`."""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares it as an instance variable
        (0, "-too-narrow"),
        (MIN_WIDTH, "-narrow"),
        (WIDE, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares it as an instance variable
        (0, "-too-low"),
        (MIN_HEIGHT, "-low"),
        (32, "-tall"),
    ]
    AUTO_FOCUS: ClassVar[str | None] = ""

    @property
    def dashboard(self) -> DashboardHost:
        """The application, typed."""
        return self.app  # type: ignore[return-value]

    @property
    def glyphs(self) -> Glyphs:
        """The characters that this terminal can show."""
        return self.dashboard.glyphs

    def compose(self) -> ComposeResult:
        """Header, body, the message for small terminals, keys."""
        yield Panel(header, self.glyphs, id="header")
        with Container(id="body"):
            yield from self.body()
        yield Static("", id="too-small", markup=False)
        yield KeyBar(self.keys(self.dashboard.state))

    def body(self) -> Iterable[Widget]:
        """The widgets between header and keys."""
        return ()

    def keys(self, state: DashboardState) -> list[Key]:
        """What the footer shows: at most eight, help and quit last."""
        return [*self.own_keys(state), ("?", "help", "app.help"), ("q", "quit", "app.leave")]

    def pause_keys(self, state: DashboardState, snooze: bool = False) -> list[Key]:
        """What space (and z) do now; nothing over a recording."""
        if not self.dashboard.feed.controls:
            return []
        word = "start" if state.gone else "resume" if state.paused else "pause"
        space: Key = ("space", word, "app.toggle_pause")
        return [space, ("z", "snooze", "app.snooze")] if snooze else [space]

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - for those that override it
        """The keys of this screen, the most wanted first, six at most."""
        return []

    def update(self, state: DashboardState, now: float) -> None:
        """Draw what changed."""

    def show(self, state: DashboardState, now: float) -> None:
        """Called at every tick while this screen is the active one, and when it becomes so."""
        self.query_one("#header", Panel).show(state, now)
        self.query_one(KeyBar).put(self.keys(state))
        self.update(state, now)

    def on_screen_resume(self) -> None:
        """Show the newest state at once."""
        self.dashboard.redraw()

    def on_resize(self) -> None:
        """Say so when the terminal is too small."""
        width, height = self.app.size
        small = f"This terminal is {width}x{height}; the dashboard needs {MIN_WIDTH}x{MIN_HEIGHT}."
        text = f"{small} Make it larger: nothing stops meanwhile."
        self.query_one("#too-small", Static).update(Content(text))
        self.dashboard.redraw()
