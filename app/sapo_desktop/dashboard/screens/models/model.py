"""One model, opened: its chart with every change marked, its history, evaluations by task, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.chart_keys import ChartKeys
from sapo_desktop.dashboard.screens.dialogs import hint
from sapo_desktop.dashboard.screens.models import compare, rows
from sapo_desktop.dashboard.screens.models.keys import MORE, ModelKeys
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.services.models.screen.interface import Shelf
from sapo_desktop.services.models.shelf.overview import Overview


class ModelScreen(ModelKeys, ChartKeys):
    """Esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#whole"

    def __init__(self, one: Overview, shelf: Shelf) -> None:
        super().__init__()
        self._one, self.shelf = one, shelf

    @property
    def chosen(self) -> Overview | None:
        """The model that is meant."""
        return self._one

    def body(self) -> Iterable[Widget]:
        """See the class."""
        yield Chart(plain(self._one.model.name, 40), self.glyphs, id="model-chart")
        with VerticalScroll(id="whole", classes="box"):
            yield Static("", id="whole-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys that count on this screen."""
        return [("Esc", "back", "screen.close"), *super().own_keys(state)]

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#whole").border_subtitle = hint(*MORE)

    def on_resize(self) -> None:
        """Draw for the new size."""
        super().on_resize()
        self.call_after_refresh(self._show)

    def fill(self) -> None:
        """Draw what is known of it now; close where it is gone."""
        id = self._one.model.record.id
        found = next((one for one in self.shelf.models if one.model.record.id == id), None)
        if found is None:
            self.action_close()
            return
        self._one = found
        self._show()

    def _show(self) -> None:
        one, box = self._one, self.query_one("#whole", VerticalScroll)
        box.border_title = Content.styled(plain(one.model.name, 60), "bold")
        width = max(box.scrollable_content_region.width, 40)
        text = rows.whole(one, self.dashboard.feed.now(), width, self.glyphs)
        self.query_one("#whole-text", Static).update(text)
        lines, marks, clock = compare.of_one(one.story)
        training = one.model.record.id == self.shelf.training
        waiting = "Waiting for the first round." if training else "No round yet. Press c: the node trains this model."
        self.query_one(Chart).show(lines, marks, waiting, f"{plain(one.model.name, 40)}: reward", clock)

    def action_close(self) -> None:
        """Back to where it was opened from."""
        if self.is_current:
            self.dismiss(None)
