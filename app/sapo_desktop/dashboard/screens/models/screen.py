"""Screen 4, My models: what they are, what they gained, and everything that an owner does with one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import hint
from sapo_desktop.dashboard.screens.models import compare, rows
from sapo_desktop.dashboard.screens.models.keys import MORE, ModelKeys
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.frame import Key, Listing
from sapo_desktop.services.models.shelf.overview import Overview


class ModelsScreen(ModelKeys):
    """Reads the disk through the actions, in workers; never on the event loop."""

    AUTO_FOCUS: ClassVar[str | None] = "#models"
    _kept = ""
    """Id of the model that the cursor was on last."""

    def body(self) -> Iterable[Widget]:
        """See the class."""
        with Vertical(id="shelf", classes="box"):
            yield Static("", id="models-head", markup=False)
            yield Listing(id="models", markup=False)
        with Vertical(id="open"):
            yield Chart("Reward", self.glyphs, id="preview")
            with VerticalScroll(id="facts", classes="box"):
                yield Static("", id="facts-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys that count on this screen."""
        return [("Enter", "open", "screen.open"), *super().own_keys(state)]

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#shelf").border_title = Content.styled("My models", "bold")
        self.query_one("#shelf").border_subtitle = hint(*MORE)

    def on_resize(self) -> None:
        """Draw for the new size: once the list has it, too."""
        super().on_resize()
        self.fill()
        self.call_later(self.fill)

    # Showing

    def complain(self, error: Exception) -> None:
        """In place of the model."""
        self._tell(Content.styled(plain(str(error), 400), "$warning"))

    @property
    def chosen(self) -> Overview | None:
        """The model that is meant."""
        place = self.query_one("#models", OptionList).highlighted
        return self.shelf.models[place] if place is not None and place < len(self.shelf.models) else None

    def fill(self) -> None:
        """Draw the list."""
        listing, models = self.query_one("#models", OptionList), self.shelf.models
        width, now = max(listing.scrollable_content_region.width, 60), self.dashboard.feed.now()
        self.query_one("#shelf").border_title = Content.styled(f"My models ({len(models)})", "bold")
        self.query_one("#models-head", Static).update(rows.head(width) if models else "")
        prompts = [rows.row(m, m.model.record.id == self.shelf.training, now, width, self.glyphs) for m in models]
        listing.set_options([Option(prompt) for prompt in prompts])
        if not models:
            text = "There is no model yet. Press n to make the first one: it starts from a base and is trained here."
            if (state := self.dashboard.state).state == "starting" and state.since and not state.gone:
                text = "The node is making the first model; it is listed here in a moment."
            self._tell(Content("\n").join([Content.styled(text, "$muted"), *self._problems()]))
            return
        places = [place for place, m in enumerate(models) if m.model.record.id == self._kept]
        listing.highlighted = places[0] if places else 0
        self._describe()

    def on_option_list_option_highlighted(self) -> None:
        """Tell of the model under the cursor."""
        self._describe()

    def made(self) -> None:
        """The cursor goes to the newest model."""
        self.query_one("#models", OptionList).highlighted = None
        self._kept = ""

    def _describe(self) -> None:
        one = self.chosen
        if one is None:
            return
        self._kept = one.model.record.id
        box = self.query_one("#facts", VerticalScroll)
        box.border_title = Content.styled(plain(one.model.name, 60), "bold")
        width = max(box.scrollable_content_region.width, 40)
        if self.big:
            text = rows.whole(one, self.dashboard.feed.now(), width, self.glyphs)
            lines, marks, clock = compare.of_one(one.story)
            name = f"{plain(one.model.name, 40)}: reward"
            self.query_one(Chart).show(lines, marks, "No round yet. Press c: the node trains this model.", name, clock)
        else:
            text = rows.summary(one, one.model.record.id == self.shelf.training, width, self.glyphs)
        self._tell(Content("\n").join([text, *self._problems()]))

    def _problems(self) -> list[Content]:
        return [Content.styled(plain(problem, 400), "$warning") for problem in self.shelf.problems]

    def _tell(self, text: Content) -> None:
        self.query_one("#facts-text", Static).update(text)

    # Opening

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the model under the cursor."""
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Open the model under the cursor."""
        if (one := self.chosen) is not None:
            from sapo_desktop.dashboard.screens.models.model import ModelScreen

            self.app.push_screen(ModelScreen(one, self.shelf))
