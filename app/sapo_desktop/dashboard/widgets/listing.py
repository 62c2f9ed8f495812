"""Textual's list of options, without what ends the app where a key comes before the first layout."""

from __future__ import annotations

from textual.widgets import OptionList


class Listing(OptionList):
    """Rows to choose from. Textual's raises KeyError at a page up or down while it has no line to be drawn on."""

    def action_page_up(self) -> None:
        """A page up."""
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        """A page down."""
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]
