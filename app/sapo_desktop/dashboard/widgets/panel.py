"""A titled box of text that repaints only when its text changed."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.widget import Widget

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.state import DashboardState

Draw = Callable[[DashboardState, float, int, int, Glyphs], Content]
"""(state, now, width, height, glyphs) -> the text; pure, so that it is tested without a terminal."""


class Panel(Widget):
    """Shows what its pure `draw` function makes of the state."""

    def __init__(self, draw: Draw, glyphs: Glyphs, title: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self._draw, self.glyphs = draw, glyphs
        self._content = Content("")
        self._seen: tuple[DashboardState, float] | None = None
        if title:
            self.border_title = Content.styled(title, "bold")

    def show(self, state: DashboardState, now: float) -> None:
        """Paint the state, if that changes the text."""
        self._seen = (state, now)
        size = self.content_size
        if not size:
            return
        text = self._draw(state, now, size.width, size.height, self.glyphs)
        if not text.is_same(self._content):
            self._content = text
            self.refresh()

    def on_resize(self) -> None:
        """Fit the text to the new size."""
        if self._seen is not None:
            self.show(*self._seen)

    def render(self) -> Content:
        """The text painted last."""
        return self._content
