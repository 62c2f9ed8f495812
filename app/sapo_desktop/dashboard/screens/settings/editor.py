"""The editor of one setting: a line to type into, or the choices there are. What is refused says why and stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog, hint
from sapo_desktop.dashboard.widgets.listing import Listing
from sapo_desktop.errors import known
from sapo_desktop.settings.rows import SettingRow, spaced

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings


class SettingEditor(Dialog[str | None]):
    """Gives the value that was written, None at Esc."""

    AUTO_FOCUS: ClassVar[str | None] = "#value"

    def __init__(self, row: SettingRow, actions: HomeSettings) -> None:
        super().__init__()
        self.row, self.actions = row, actions

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        row = self.row
        with Vertical(classes="box dialog editor"):
            yield Static(Content.styled(row.key, "bold"), markup=False)
            yield Static(plain(row.help, 400), markup=False)
            if self.choices:
                yield Listing(*self.choices, id="value", markup=False)
            else:
                yield Input(row.value, id="value", compact=True)
            yield Static("", id="complaint", markup=False)
            allowed = f"{row.kind} · default {plain(spaced(row, row.default), 200)}"
            yield Static(Content.styled(allowed, "$muted"), markup=False)
            yield Static(hint(("Enter", "write"), ("Esc", "cancel")), markup=False)

    @property
    def choices(self) -> tuple[str, ...]:
        """Themes are known to the application only."""
        return tuple(sorted(self.app.available_themes)) if self.row.key == "ui.theme" else self.row.choices

    def on_mount(self) -> None:
        """The cursor stands on the present value."""
        if self.row.value in self.choices:
            self.query_one("#value", OptionList).highlighted = self.choices.index(self.row.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the chosen value."""
        event.stop()
        self._write(self.choices[event.option_index])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the typed value, or say why not."""
        event.stop()
        self._write(event.value.strip())

    def _write(self, value: str) -> None:
        self.run_worker(self._try(value), name="write", exclusive=True, exit_on_error=True)

    async def _try(self, value: str) -> None:
        try:
            await self.actions.change(self.row.key, value, self.row.owner)
        except known() as error:
            self.complain(str(error))
        else:
            self.dismiss(value)
