"""Screen 5: the log, with dates and search."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look import format_date_time, hanging_indent, plain_text
from sapo_desktop.dashboard.screens.base import BaseScreen, SearchableScreen
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_swarm.events import LogLine

_STYLES = {"info": "", "warning": "$warning", "error": "bold $error"}
_SHOWN = 400


class LogScreen(SearchableScreen, BaseScreen):
    """Screen 5: dated lines, searchable."""

    SEARCHED = AUTO_FOCUS = "#lines"
    """What the arrows, page keys, Home and End move."""
    _drawn: object = None

    def body(self) -> Iterable[Widget]:
        """The search field and the lines."""
        yield Input(placeholder="search the log, Enter keeps it, Esc clears it", id="search", classes="search")
        with VerticalScroll(id="lines", classes="box"):
            yield Static("", id="log-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """Pause, search, scroll, screens."""
        scroll: Key = ("↑ ↓ Home End", "scroll", "")
        return [
            *self.pause_keys(state),
            ("/", "search", "screen.search"),
            scroll,
            ("1-5", "screens", "app.next_screen"),
        ]

    def on_mount(self) -> None:
        """Follow the newest line until the person scrolls up, and again from the end on."""
        self.query_one("#lines", VerticalScroll).anchor()

    def update(self, state: DashboardState, now: float) -> None:  # noqa: ARG002 - as every screen
        """Repaint when the log, the search or the width changed."""
        wanted = self.query_one("#search", Input).value.casefold()
        width = max(self.query_one("#lines", VerticalScroll).size.width - 4, 40)
        if (state.log, wanted, width) == self._drawn:
            return
        self._drawn = (state.log, wanted, width)
        lines = in_order(state.log, wanted)
        box = self.query_one("#lines", VerticalScroll)
        self.query_one("#log-text", Static).update(log_text(lines[-_SHOWN:], wanted, width))
        title = (
            f"Log  {len(lines):,} of {len(state.log):,} lines"
            if wanted
            else f"Log  {len(lines):,} line{'' if len(lines) == 1 else 's'}"
        )
        box.border_title = Content.styled(title, "bold")

    def on_input_changed(self) -> None:
        """Filter while typing."""
        self.dashboard.redraw()


def in_order(log: Iterable[LogLine], wanted: str) -> list[LogLine]:
    """The lines that contain the wanted text, in journal order: after a reconnect the groups arrive after everything else, and a
    clock may be set back. A line that is not in the journal stays where it arrived."""
    lines = list(log)
    newest = accumulate((line.seq for line in lines), max)
    placed = sorted(zip(newest, lines, strict=True), key=lambda place: place[1].seq or place[0])
    return [line for _, line in placed if wanted in line.text.casefold()]


def log_text(lines: list[LogLine], wanted: str, width: int) -> Content:
    """One dated line each, in the given order; levels are words as well as colours."""
    if not lines:
        return Content.styled("No line holds that." if wanted else "Nothing happened yet.", "$muted")
    return Content("\n").join(_line(line, width) for line in lines)


def _line(line: LogLine, width: int) -> Content:
    head, level = format_date_time(line.time), f"  {line.level:<7}  " if line.level != "info" else "  "
    text = hanging_indent(plain_text(line.text, 1000), width, len(head) + len(level))
    return Content.assemble((head, "$muted"), (level + text, _STYLES[line.level]))
