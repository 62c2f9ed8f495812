"""A list that shows one page of many: whoever walks over its edge gets the next page."""

from __future__ import annotations

from typing import Literal

from textual.message import Message

from sapo_desktop.dashboard.widgets.listing import Listing

Edge = Literal["older", "newer", "newest", "oldest"]


class GroupList(Listing):
    """Rows of one page. Tells by Left when the cursor wants to go where the page does not reach."""

    class Left(Message):
        """Another page is wanted."""

        def __init__(self, edge: Edge) -> None:
            super().__init__()
            self.edge = edge

    @property
    def _last(self) -> int:
        return self.option_count - 1

    def _walk(self, edge: Edge, at: int) -> bool:
        """At that row a step leads to another page."""
        if self.highlighted not in (None, at):
            return False
        self.post_message(self.Left(edge))
        return True

    def action_cursor_down(self) -> None:
        """The next row, or page."""
        if not self._walk("older", self._last):
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """The row before, or page."""
        if not self._walk("newer", 0):
            super().action_cursor_up()

    def action_page_down(self) -> None:
        """A screenful on."""
        if not self._walk("older", self._last):
            super().action_page_down()

    def action_page_up(self) -> None:
        """A screenful back."""
        if not self._walk("newer", 0):
            super().action_page_up()

    def action_first(self) -> None:
        """The newest group of all."""
        self.post_message(self.Left("newest"))

    def action_last(self) -> None:
        """The oldest group of all."""
        self.post_message(self.Left("oldest"))
