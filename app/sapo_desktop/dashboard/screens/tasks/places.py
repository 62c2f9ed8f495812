"""The wizard, first step: which file. A path to type, and what lies there to choose from."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog
from sapo_desktop.dashboard.screens.tasks.draft import DraftScreen
from sapo_desktop.dashboard.screens.tasks.measuring import SMALL
from sapo_desktop.dashboard.widgets.frame import Key, KeyBar, Listing
from sapo_desktop.errors import known
from sapo_desktop.services.tasks.wizard.interface import Made, Place

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

_KEYS: list[Key] = [
    ("type", "a path", ""),
    ("arrows", "choose", ""),
    ("Enter", "open", "screen.open"),
    ("F1", "help", "app.help"),
    ("Esc", "cancel", "screen.cancel"),
]


class PlacesScreen(Dialog[Made | None]):
    """The field keeps the focus: letters narrow the list, arrows move in it, Enter opens what is marked."""

    AUTO_FOCUS: ClassVar[str | None] = "#path"
    VERTICAL_BREAKPOINTS = SMALL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", show=False),
        Binding("down", "move(1)", "down", show=False, priority=True),
        Binding("up", "move(-1)", "up", show=False, priority=True),
        Binding("pagedown", "move(10)", "down", show=False, priority=True),
        Binding("pageup", "move(-10)", "up", show=False, priority=True),
    ]

    def __init__(self, actions: HomeTasks, base: str = "") -> None:
        """base: the model that was chosen already; "" = the first on offer."""
        super().__init__()
        self._actions, self._base = actions, base
        self._places: tuple[Place, ...] = ()
        self._listed: str | None = None

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            yield Static(Content.styled("A task of my own: which file?", "bold"), markup=False)
            yield Static(
                Content.styled("CSV, TSV, JSONL or Parquet: a row for each question, with its answer.", "$muted"),
                classes="more",
                markup=False,
            )
            yield Input(placeholder=f"{os.getcwd()}{os.sep}", id="path", compact=True, select_on_focus=False)
            yield Listing(id="places", markup=False)
            yield Static("", id="complaint", markup=False)
            yield KeyBar(_KEYS)

    def on_mount(self) -> None:
        """Show the folder that the dashboard was started in."""
        self.query_one("#places", OptionList).can_focus = False
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list to what was typed."""
        self._list(event.value)

    def on_input_submitted(self) -> None:
        """Enter."""
        self.action_open()

    @work(name="places", group="places", exclusive=True)
    async def _list(self, typed: str) -> None:
        with suppress(NoMatches):  # closed while the folder was being read
            await self._read(typed)

    async def _read(self, typed: str) -> None:
        try:
            self._places = await self._actions.places(typed)
        except known() as error:
            self._places = ()
            self.complain(str(error))
        else:
            none = "No table begins so here." if not any(not place.folder for place in self._places) else ""
            self.complain(none, "$muted")
        listing = self.query_one("#places", OptionList)
        names = [plain(place.name, 200) for place in self._places]
        column = max((cell_len(name) for name in names if cell_len(name) <= 36), default=0)
        listing.set_options(
            Option(Content.assemble(set_cell_size(name, max(column, cell_len(name))), (f"  {place.detail}", "$muted")))
            for name, place in zip(names, self._places, strict=True)
        )
        listing.highlighted = 0 if self._places else None
        self._listed = typed

    def action_move(self, steps: int) -> None:
        """Another entry of the list."""
        listing = self.query_one("#places", OptionList)
        if self._places:
            listing.highlighted = min(max((listing.highlighted or 0) + steps, 0), len(self._places) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click opens what is under it."""
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Go into the folder, or on with the file; without a mark, on with what was typed."""
        self._open()

    @work(name="places", group="places", exclusive=True)
    async def _open(self) -> None:
        typed = self.query_one("#path", Input).value
        if typed != self._listed:  # Enter came before the list of what was typed
            await self._read(typed)
        place = self.query_one("#places", OptionList).highlighted
        field = self.query_one("#path", Input)
        if place is None or place >= len(self._places):
            if typed := field.value.strip():
                from sapo_desktop.services.tasks.wizard.places import dropped_file

                self._look(dropped_file(typed) or typed)
            return
        chosen = self._places[place]
        if chosen.folder:
            field.value = chosen.path
            field.action_end()
        else:
            self._look(chosen.path)

    def _look(self, path: str) -> None:
        self.app.push_screen(DraftScreen(self._actions, path, self._base), self._done)

    def _done(self, made: Made | None) -> None:
        if made is not None:
            self.dismiss(made)
