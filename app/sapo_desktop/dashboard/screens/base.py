"""What all screens share: the header line, the footer, the message for a terminal that is too small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_desktop.dashboard.host import DashboardHost
from sapo_desktop.dashboard.look import GlyphSet
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key, KeyBar, Panel, header_line

MIN_WIDTH, MIN_HEIGHT, WIDE = 80, 24, 100
BIG_WIDTH, BIG_HEIGHT = 160, 44
"""From this size on, a screen has room for what smaller ones open with a key."""


T = TypeVar("T")


class DismissOnceScreen(Screen[T], Generic[T]):
    """A screen that closes only once. Textual's dismiss pops whatever is on top: a repeated Enter would close the screen below,
    and after the last one the app; and if help covers a screen that closes by itself, it would close the help."""

    _late: tuple[T | None] | None = None

    @property
    def dashboard(self) -> DashboardHost:
        """The application, typed."""
        return self.app  # type: ignore[return-value]

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with a result; if another screen covers this one, as soon as that is gone."""
        if self.is_active:
            return super().dismiss(result)
        if self in self.app.screen_stack:
            self._late = (result,)
        return AwaitComplete()

    def on_screen_resume(self) -> None:
        """Close now, if that was postponed: the screen above is gone."""
        if self._late is not None:
            self.dismiss(*self._late)


class SearchableScreen(DismissOnceScreen[None]):
    """A search field above the searched content. Enter keeps the text, Esc clears it."""

    SEARCHED: ClassVar[str]
    """Selector of the widget that has the focus outside the search field."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", show=False),
        Binding("escape", "clear", "clear", show=False),
    ]

    def action_search(self) -> None:
        """Open the search field."""
        search = self.query_one("#search", Input)
        search.add_class("-open")
        self.add_class("-searching")
        search.focus()

    def action_clear(self) -> None:
        """Empty and close the search."""
        search = self.query_one("#search", Input)
        search.value = ""
        search.remove_class("-open")
        self.remove_class("-searching")
        self.on_input_submitted()

    def on_input_submitted(self) -> None:
        """Move the focus back to the searched content."""
        self.query_one(self.SEARCHED).focus()


class BaseScreen(DismissOnceScreen[None]):
    """A mode of the dashboard. Subclasses implement `body()` and `update()`."""

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
    _caption = ""

    @property
    def glyphs(self) -> GlyphSet:
        """The characters that this terminal can show."""
        return self.dashboard.glyphs

    def compose(self) -> ComposeResult:
        """Header, body, the message for small terminals, keys."""
        yield Panel(self._header, self.glyphs, id="header")
        with Container(id="body"):
            yield from self.body()
        yield Static("", id="too-small", markup=False)
        yield Static("", id="caption", markup=False)
        yield KeyBar(self.keys(self.dashboard.state))

    def _header(self, state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
        player = self.dashboard.player
        return header_line(state, now, width, height, glyphs, player.badge if player is not None else "")

    def _show_caption(self) -> None:
        player = self.dashboard.player
        caption = player.caption if player is not None else None
        text = caption.text if caption is not None else ""
        if text != self._caption:
            self._caption = text
            self.query_one("#caption", Static).update(Content(text))
            self.set_class(bool(text), "-captioned")

    def body(self) -> Iterable[Widget]:
        """The widgets between header and keys."""
        return ()

    def keys(self, state: DashboardState) -> list[Key]:
        """The keys in the footer: at most eight, help and quit last. In a text field letters are text, so other keys apply."""
        if isinstance(self.focused, Input):
            return [*self.typing_keys(state), ("F1", "help", "app.help"), ("ctrl+q", "quit", "app.leave")]
        return [*self.own_keys(state), ("?", "help", "app.help"), ("q", "quit", "app.leave")]

    def typing_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - for those that override it
        """The keys that work while text is being typed."""
        return [("Enter", "keep", ""), ("Esc", "clear", "screen.clear")]

    def pause_keys(self, state: DashboardState, snooze: bool = False) -> list[Key]:
        """What space (and z) do now; over a recording, the playback keys."""
        player = self.dashboard.player
        if player is not None and player.steers:
            return [
                ("space", "hold", "app.toggle_pause"),
                ("[ ]", "seek", "app.seek(1)"),
                (", .", "speed", "app.speed(1)"),
            ]
        if not self.dashboard.feed.controls or (state.absent and not state.gone):
            return []
        word = "start" if state.gone else "resume" if state.resumable else "pause"
        space: Key = ("space", word, "app.toggle_pause")
        return [space, ("z", "snooze", "app.snooze")] if snooze and not state.gone else [space]

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - for those that override it
        """The keys of this screen, most important first, six at most."""
        return []

    def update(self, state: DashboardState, now: float) -> None:
        """Draw what changed."""

    def show(self, state: DashboardState, now: float) -> None:
        """Called at every tick while this screen is active, and when it becomes active."""
        self.query_one("#header", Panel).show(state, now)
        self._show_caption()
        self.query_one(KeyBar).put(self.keys(state))
        self.update(state, now)

    @property
    def big(self) -> bool:
        """Whether there is room for more than the usual panels."""
        return self.app.size.width >= BIG_WIDTH and self.app.size.height >= BIG_HEIGHT

    def on_screen_resume(self) -> None:
        """Show the newest state at once."""
        self.dashboard.redraw()

    def on_resize(self) -> None:
        """Show the message if the terminal is too small."""
        width, height = self.app.size
        self.set_class(self.big, "-big")
        small = f"This terminal is {width}x{height}; the dashboard needs {MIN_WIDTH}x{MIN_HEIGHT}."
        text = f"{small} Make it larger: nothing stops meanwhile."
        self.query_one("#too-small", Static).update(Content(text))
        self.dashboard.redraw()
        self.call_after_refresh(self._focus_again)

    def _focus_again(self) -> None:
        """Restore the focus, which the list lost when a too-small terminal hid it."""
        fits = self.app.size.width >= MIN_WIDTH and self.app.size.height >= MIN_HEIGHT
        if fits and self.is_current and self.focused is None and self.AUTO_FOCUS:
            self.query_one(self.AUTO_FOCUS).focus()
