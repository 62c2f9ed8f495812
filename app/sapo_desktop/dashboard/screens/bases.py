"""The list of models to start from: on this computer, to download, and the toys. Names and paths are untrusted text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import fit_width, plain_text
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.widgets.frame import ChoiceList
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.first_questions import BaseGroup, BaseOffer, Offers

NAME = 36
"""Columns for a model's name; the full name is shown below the list."""


class BasesDialog(Dialog[BaseOffer | None]):
    """Returns the chosen model; None after Esc. Untrainable models are listed in grey with the reason; the cursor skips them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "renew", "look again", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#bases"

    def __init__(self, offers: Offers, chosen: str = "") -> None:
        """chosen: the model initially under the cursor, if it is on the list."""
        super().__init__()
        self._offers, self._chosen = offers, chosen
        self._rows: list[BaseOffer | None] = []
        """For each row of the list its model, or None for a title or a sentence."""

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog bases"):
            yield Static(Content.styled("A real model to start from", "bold"), markup=False)
            yield ChoiceList(id="bases", markup=False)
            yield Static("", id="detail", markup=False)
            yield Static("", id="complaint", markup=False)
            keys = (("Enter", "take it"), ("↑ ↓", "choose"), ("r", "look again"), ("Esc", "back"))
            yield Static(key_hint(*keys), markup=False)

    def on_mount(self) -> None:
        """Scan the disks, and check whether the hub answers."""
        self._look(False)

    def action_renew(self) -> None:
        """Look again."""
        self._look(True)

    def _look(self, again: bool) -> None:
        self.complain("Looking for models on this computer …", "$muted")
        self.run_worker(self._fill(again), group="bases", exclusive=True, exit_on_error=True)

    async def _fill(self, again: bool) -> None:
        try:
            groups = await self._offers(again)
        except USER_ERRORS as error:
            self.complain(str(error))
            return
        self.complain("")
        rows = self.query_one("#bases", OptionList)
        rows.clear_options()
        self._rows = []
        for group in groups:
            for row, offer in _lines(group, len(self._rows) > 0):
                rows.add_option(Option(row, disabled=offer is None or bool(offer.blocked)))
                self._rows.append(offer)
        free = [place for place, offer in enumerate(self._rows) if offer is not None and not offer.blocked]
        named = [place for place in free if (offer := self._rows[place]) is not None and offer.value == self._chosen]
        rows.highlighted = next(iter([*named, *free]), None)
        rows.focus()

    def complain(self, text: str, style: str = "$warning") -> None:
        """Show the message; an empty text hides the line."""
        self.query_one("#complaint").display = bool(text)
        super().complain(text, style)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the model under the cursor."""
        offer = self._rows[event.option_index] if event.option_index < len(self._rows) else None
        more = f"{plain_text(offer.value, 100)}: {plain_text(offer.more or offer.detail, 300)}" if offer else ""
        self.query_one("#detail", Static).update(Content.styled(more, "$muted"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the chosen model."""
        event.stop()
        self.dismiss(self._rows[event.option_index])


def _lines(group: BaseGroup, below: bool) -> list[tuple[Content, BaseOffer | None]]:
    """A group's title, models and sentences. below: whether another group is above it."""
    title = Content.styled(plain_text(group.title, 100), "bold $accent")
    lines: list[tuple[Content, BaseOffer | None]] = [(Content(""), None)] if below else []
    lines.append((title, None))
    for offer in group.offers:
        grey = "$muted" if offer.blocked else ""
        name = (f"  {fit_width(plain_text(offer.value, 200), NAME)} ", grey)
        lines.append((Content.assemble(name, (plain_text(offer.detail, 160), "$muted")), offer))
    return [*lines, *((Content.styled(f"  {plain_text(note, 200)}", "$muted"), None) for note in group.notes)]
