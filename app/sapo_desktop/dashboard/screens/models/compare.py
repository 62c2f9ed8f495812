"""Two models, or one and its base: their curves in one chart, and the paired held-out test in one table."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.chart_keys import ChartKeys
from sapo_desktop.dashboard.screens.models import curves
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.errors import known
from sapo_desktop.services.models.shelf.overview import Overview


class CompareScreen(ChartKeys, BaseScreen):
    """Esc closes it and stops the measuring."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#table"

    def __init__(self, first: Overview, second: Overview | None, items: int) -> None:
        """second: None = the base of the first. items: held-out questions a task."""
        super().__init__()
        self._first, self._second, self._items = first, second, items

    def body(self) -> Iterable[Widget]:
        """See the class."""
        yield Chart("Reward", self.glyphs, id="compare-chart")
        with VerticalScroll(id="table", classes="box"):
            yield Static("", id="table-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys that count on this screen."""
        return [("Esc", "back", "screen.close"), *self.pause_keys(state)]

    def on_mount(self) -> None:
        """Begin to read."""
        other = self._second.model.name if self._second else "its base"
        title = f"{self._first.model.name} and {other}, {self._items} held-out questions a task"
        self.query_one("#table").border_title = Content.styled(plain(title, 100), "bold")
        self.call_after_refresh(self._draw)
        self.run_worker(self._measure(), name="compare", exit_on_error=True)

    def on_resize(self) -> None:
        """Draw for the new size."""
        super().on_resize()
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        named = [(plain(one.model.name, 30), one.story) for one in (self._first, self._second) if one is not None]
        lines, marks, clock = curves.of_two(named[0], named[1] if len(named) > 1 else None)
        self.query_one(Chart).show(lines, marks, "Neither has been trained yet.", clock=clock)

    async def _measure(self) -> None:
        actions = self.dashboard.model_actions
        assert actions is not None
        second = self._second.model.record.id if self._second else ""
        work = actions.compare(self._first.model.record.id, second, self._items)
        self._say(Content.styled("Loading the models …", "$muted"))
        try:
            async with aclosing(work) as steps:
                async for told in steps:
                    if told.result:
                        self._say(Content("\n").join(Content(plain(line, 300)) for line in told.result))
                    else:
                        self._say(
                            Content.styled(f"Answering held-out questions: {plain(told.progress, 120)}", "$muted")
                        )
        except known() as error:
            self._say(Content.styled(plain(str(error), 600), "$warning"))

    def _say(self, text: Content) -> None:
        self.query_one("#table-text", Static).update(text)

    def action_close(self) -> None:
        """Back to where it was opened from."""
        self.dismiss(None)
