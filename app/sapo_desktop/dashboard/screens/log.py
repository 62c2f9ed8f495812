"""Screen 5: what happened, dated and searchable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.show import date, plain
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_swarm.events import LogLine

_STYLES = {"info": "", "warning": "$warning", "error": "bold $error"}
_SHOWN = 400


class LogScreen(BaseScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", show=False),
        Binding("escape", "clear", "clear", show=False),
    ]
    _drawn: object = None

    def body(self) -> Iterable[Widget]:
        yield Input(placeholder="search the log, Enter keeps it, Esc clears it", id="search", classes="search")
        with VerticalScroll(id="lines", classes="box"):
            yield Static("", id="log-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        return [("/", "search", "screen.search"), ("1-5", "screens", "app.next_screen")]

    def update(self, state: DashboardState, now: float) -> None:
        wanted = self.query_one("#search", Input).value.casefold()
        if (state.log, wanted) == self._drawn:
            return
        self._drawn = (state.log, wanted)
        found = [line for line in state.log if wanted in line.text.casefold()]
        box = self.query_one("#lines", VerticalScroll)
        at_end = box.scroll_y >= box.max_scroll_y - 1
        self.query_one("#log-text", Static).update(log_text(found[-_SHOWN:], wanted))
        title = f"Log  {len(found):,} of {len(state.log):,} lines" if wanted else f"Log  {len(found):,} lines"
        box.border_title = Content.styled(title, "bold")
        if at_end:
            box.scroll_end(animate=False)

    def on_input_changed(self) -> None:
        self.dashboard.redraw()

    def on_input_submitted(self) -> None:
        self.query_one("#lines", VerticalScroll).focus()

    def action_search(self) -> None:
        search = self.query_one("#search", Input)
        search.add_class("-open")
        search.focus()

    def action_clear(self) -> None:
        search = self.query_one("#search", Input)
        search.value = ""
        search.remove_class("-open")
        self.query_one("#lines", VerticalScroll).focus()


def log_text(lines: list[LogLine], wanted: str) -> Content:
    """One dated line each, oldest first; levels are words as well as colours."""
    if not lines:
        return Content.styled("No line holds that." if wanted else "Nothing happened yet.", "$muted")
    return Content("\n").join(
        Content.assemble(
            (date(line.time), "$muted"),
            (f"  {line.level:<7}  " if line.level != "info" else "  ", _STYLES[line.level]),
            (plain(line.text, 1000), _STYLES[line.level]),
        )
        for line in lines
    )
